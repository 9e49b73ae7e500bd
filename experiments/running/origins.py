"""The origin of each value in a config: the command line, a hook, a named config, a recipe, or its default."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import sacred
from sacred.config import ConfigDict
from sacred.utils import get_by_dotted_path, iter_prefixes, iterate_flattened, join_paths

from sacristan.configs.map import is_group
from sacristan.experiments.running.computed_config import ComputedConfig
from sacristan.ingredients.config.files import read_config_file
from sacristan.ingredients.config.ingredient import ConfigHook
from sacristan.ingredients.config.scope import Scope
from sacristan.observers.file.sacred_form import plain

__all__ = ["origins"]

_DEFAULT = "default"
_TYPED = "command line"
_DRAWN = "drawn"


def origins(
    experiment: sacred.Experiment,
    computed: ComputedConfig,
    updates: Mapping[str, Any],
    named_configs: Sequence[str],
    aliases: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Return the origins of all entries that are not at their defaults, or were typed.

    Call it right after the config is computed, because scopes and hooks know what they set when they were last called.
    The result is a list of `{"origin": ..., "entries": [dotted names]}`, as MongoDB rejects keys with dots.
    `named_configs` are in the order in which they apply; `aliases` map root entries to dotted names.
    """
    parts = [part for part, _ in list(experiment.traverse_ingredients())]
    found = _of_named_configs(experiment, computed, named_configs)
    for hook in [hook for part in parts for hook in part.config_hooks if isinstance(hook, ConfigHook)]:
        found |= dict.fromkeys(hook.changed, f"hook {hook.function.__name__}")
    found |= dict.fromkeys((entry for entry, _ in iterate_flattened(updates)), _TYPED)
    for alias, target in aliases.items():
        origin = found.get(target) or found.get(alias)
        found |= {} if origin is None else {alias: origin, target: origin}
    found.setdefault("seed", _DEFAULT if _is_declared(experiment, "seed") else _DRAWN)
    return _grouped(found, computed.values)


def _grouped(by_entry: Mapping[str, str], config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entries by origin, without those that are at their defaults, or not in the config."""
    missing = object()
    groups: dict[str, list[str]] = {}
    for entry, origin in sorted(by_entry.items()):
        if origin == _DEFAULT:
            continue
        if keyed := _recorded_names(entry, config):
            groups.setdefault(origin, []).extend(keyed)
        elif get_by_dotted_path(config, entry, missing) is not missing:
            groups.setdefault(origin, []).append(entry)
    return [{"origin": origin, "entries": entries} for origin, entries in groups.items()]


def _recorded_names(entry: str, config: Mapping[str, Any]) -> list[str]:
    """Return the recorded names in the dict with non-string keys that an entry is, or is in."""
    for name in iter_prefixes(entry):
        value = get_by_dotted_path(config, name)
        if isinstance(value, dict) and value and not is_group(value):
            return [join_paths(name, key) for key, _ in iterate_flattened(plain(value))]
        if not isinstance(value, dict):
            break
    return []


def _of_named_configs(
    experiment: sacred.Experiment, computed: ComputedConfig, named_configs: Sequence[str]
) -> dict[str, str]:
    """Return the last named config or file that changed each entry from its default, by entry."""
    known = dict(experiment.gather_named_configs())
    parts = [part.path for part, _ in list(experiment.traverse_ingredients()) if part is not experiment]
    at_default = _AtDefault(computed.changes, parts)
    found: dict[str, str] = {}
    for name in named_configs:
        path = "" if name not in known else name.rpartition(".")[0]
        entries = [join_paths(path, entry) for entry in _entries(name, known)]
        found |= {entry: name for entry in entries if not at_default(entry)}
    return found


class _AtDefault:
    """Checks whether an entry is at its default although a named config or file sets it.

    Args:
        parts: Dotted paths of the ingredients.
    """

    def __init__(self, changes: Any, parts: Collection[str]) -> None:
        self._changed = {*changes.added, *changes.modified, *changes.typechanged}
        self._documented, self._parts = changes.docs, parts

    def __call__(self, entry: str) -> bool:
        # Within a dict whose keys are free, the dict itself is changed.
        for name in reversed(list(iter_prefixes(entry))):
            if name in self._parts:
                break
            if name in self._changed:
                return False
            if name in self._documented:
                break
        return True


def _entries(name: str, known: Mapping[str, Any]) -> Iterable[str]:
    """Return the dotted names of the entries that a named config or file sets."""
    if Path(name).is_file():
        return [entry for entry, _ in iterate_flattened(read_config_file(name))]
    config = known.get(name)
    if isinstance(config, Scope):
        return config.has_set
    return [entry for entry, _ in iterate_flattened(config._conf)] if isinstance(config, ConfigDict) else ()


def _is_declared(experiment: sacred.Experiment, name: str) -> bool:
    return any(
        name in (config.has_set if isinstance(config, Scope) else getattr(config, "_conf", ()))
        for config in experiment.configurations
    )
