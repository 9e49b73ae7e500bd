"""Aliases: entries at the root of a config that stand for an ingredient's entries, such as `lr` for `optimizer.lr`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NoReturn

from sacred.config.config_summary import ConfigSummary
from sacred.utils import get_by_dotted_path, set_by_dotted_path

from sacristan.ingredients.errors import ConfigError

__all__ = ["Aliases"]

_UNSET = object()


class Aliases:
    """The aliases of an experiment; `targets` has the dotted name of the entry that each stands for."""

    def __init__(self) -> None:
        self.targets: dict[str, str] = {}

    def mirror(self, updates: dict[str, Any]) -> None:
        """Set both names of an entry in `updates`, which a call or the command line sets, where one of them is set."""
        for alias, target in self.targets.items():
            at_root, at_target = updates.get(alias, _UNSET), get_by_dotted_path(updates, target, _UNSET)
            if at_root is not _UNSET and at_target is not _UNSET and at_root != at_target:
                _reject(alias, at_root, target, at_target)
            if at_root is not _UNSET:
                set_by_dotted_path(updates, target, at_root)
            elif at_target is not _UNSET:
                updates[alias] = at_target

    def carry(self, updates: dict[str, Any]) -> None:
        """Set the entry of each alias that only the root sets, as named configs and files do, in `updates`.

        An entry that is set as well keeps its value, and `follow` compares the two.
        """
        for alias, target in self.targets.items():
            if alias in updates and get_by_dotted_path(updates, target, _UNSET) is _UNSET:
                set_by_dotted_path(updates, target, updates[alias])

    def follow(self, config: Mapping[str, Any], changes: ConfigSummary, updates: dict[str, Any]) -> bool:
        """Set both names in `updates` where a scope or hook of the experiment gave an alias a value of its own.

        Returns whether anything was set, so that the config has to be computed again. `ConfigError` if the two have
        different values, or one of them is not an entry.
        """
        is_changed = False
        for alias, target in self.targets.items():
            at_root, at_target = config.get(alias, _UNSET), get_by_dotted_path(config, target, _UNSET)
            if target == "seed" and at_target is _UNSET:
                at_target = None  # it is drawn afterwards, unless it is set
            if _UNSET in (at_root, at_target):
                missing = alias if at_root is _UNSET else target
                raise ConfigError(
                    f"{missing}: there is no such entry, so {alias} cannot be an alias of {target}; add it"
                )
            if at_root != at_target:
                if target in changes.modified:
                    _reject(alias, at_root, target, at_target)
                set_by_dotted_path(updates, target, at_root)
                updates[alias] = at_root
                is_changed = True
        return is_changed

    def mark(self, changes: ConfigSummary) -> None:
        """Mark each alias as changed, in Sacred's summary, where the entry it stands for is."""
        for alias, target in self.targets.items():
            for marked in (changes.modified, changes.added):
                marked |= {alias} if target in marked else set()
            if target in changes.typechanged:
                changes.typechanged[alias] = changes.typechanged[target]

    @contextlib.contextmanager
    def named_as_typed(self, typed: Collection[str]) -> Iterator[None]:
        """Use the aliases in error messages of the block where the user typed those."""
        try:
            yield
        except ConfigError as error:
            message = str(error)
            for alias in self.targets.keys() & set(typed):
                message = re.sub(rf"\b{re.escape(self.targets[alias])}\b", alias, message)
            error.args = (message,)
            raise


def _reject(alias: str, at_root: Any, target: str, at_target: Any) -> NoReturn:
    raise ConfigError(
        f"{alias} and {target} are one setting, but got {alias}={at_root} and {target}={at_target}; give one of them"
    )
