"""`ConfigHook`: a config hook as Sacred calls it, which may return updates or the config it received, changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sacred
from sacred.utils import get_by_dotted_path, is_prefix, iterate_flattened, join_paths

from configs import MutableMap, to_plain
from ingredients.errors import ConfigError

__all__ = ["ConfigHook"]


class ConfigHook:
    """A config hook of an ingredient: `(config, command_name, logger) -> updates`.

    The function receives the config as far as it is computed, as a `MutableMap`. It returns a dict of changes to its
    own ingredient's entries, or that very config, changed (`config.update(...); return config`), or None.

    Args:
        function: The hook.
        ingredient: Its ingredient, or experiment.
        path: Dotted path of that one's entries in the whole config.

    Attributes:
        changed: Dotted names of the entries that it changed when it was last called.
    """

    def __init__(self, function: Callable, ingredient: sacred.Ingredient, path: str) -> None:
        self.function = function
        self.changed: list[str] = []
        self._ingredient = ingredient
        self._path = path
        self._label = f"config hook {function.__name__}"

    def at(self, ingredient: sacred.Ingredient, path: str) -> ConfigHook:
        """Return this hook as that of another ingredient."""
        return ConfigHook(self.function, ingredient, path)

    def __call__(self, config: dict, command_name: str, logger: Any) -> dict | None:
        """Return the changes to the entries of the ingredient.

        Raises:
            ConfigError: If the function returns no dict, changes the config it received and returns nothing, or changes
                the entries of another ingredient, which would be lost.
        """
        self.changed = []
        received = MutableMap(config)
        returned = self.function(received, command_name, logger)
        if returned is None:
            self._check_unchanged(config, received)
            return None
        if not isinstance(returned, Mapping):
            raise ConfigError(
                f"{self._label}: returned {returned!r} ({type(returned).__name__}), expected a dict of changed entries"
            )
        updates = to_plain(returned)
        if self._path and returned is not received:
            own = get_by_dotted_path(config, self._path, {})
            self.changed = [join_paths(self._path, name) for name in _changed(own, updates)]
            return updates
        return self._own_part(config, updates)

    def _check_unchanged(self, before: dict, after: MutableMap) -> None:
        changed = _changed(before, after)
        if changed:
            raise ConfigError(
                f"{self._label}: changed {', '.join(changed)}, but returned nothing; end it with return config"
            )

    def _own_part(self, config: dict, updates: dict) -> dict:
        """Return the entries of the ingredient in a whole config; reject changes of others."""
        others = {part.path for part, _ in self._ingredient.traverse_ingredients() if part is not self._ingredient}
        self.changed = _changed(config, updates)
        foreign = [name for name in self.changed if not self._is_own(name, others)]
        if foreign:
            raise ConfigError(
                f"{self._label}: changed {', '.join(foreign)}, which is not of {self._path or 'the experiment'}, so "
                "that it would be lost; change it in a config hook of its ingredient, or in a named config"
            )
        if self._path:
            return get_by_dotted_path(updates, self._path, {})
        return {name: value for name, value in updates.items() if name.partition(".")[0] not in others}

    def _is_own(self, name: str, others: set[str]) -> bool:
        is_within = not self._path or is_prefix(self._path, name)
        return is_within and not any(name == other or is_prefix(other, name) for other in others)


def _changed(before: Mapping, after: Mapping) -> list[str]:
    """Return the dotted names of the entries of `after` that are not as they were."""
    old = dict(iterate_flattened(before))
    return [name for name, value in iterate_flattened(after) if name not in old or not _equal(old[name], value)]


def _equal(first: Any, second: Any) -> bool:
    try:
        return first is second or bool(first == second and type(first) is type(second))
    except ValueError:  # arrays, which compare element by element
        return False
