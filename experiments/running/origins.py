"""The origin of each config value: the command line, a hook, a named config, a recipe, or its default."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import sacred
from sacred.config import ConfigDict
from sacred.utils import get_by_dotted_path, iter_prefixes, iterate_flattened, join_paths

from experiments.running.computed_config import ComputedConfig
from ingredients.config.files import read_config_file
from ingredients.config.hooks import ConfigHook
from ingredients.config.scope import Scope

__all__ = ["DEFAULT", "grouped", "origins"]

DEFAULT = "default"
_TYPED = "command line"
_DRAWN = "drawn"


def origins(
    experiment: sacred.Experiment,
    computed: ComputedConfig,
    updates: Mapping[str, Any],
    named_configs: Sequence[str],
    aliases: Mapping[str, str],
) -> dict[str, str]:
    """Return the origin of each entry that is not at its default, or was typed, by dotted name.

    Called when the config was computed, because scopes and hooks know what they set when they were last called.

    Args:
        experiment: The experiment.
        computed: The config.
        updates: What was given by the call or on the command line, nested.
        named_configs: Named configs and files, in the order that they were given in.
        aliases: Entries at the root, and the entries that they stand for.
    """
    found: dict[str, str] = {}
    known = dict(experiment.gather_named_configs())
    parts = [part for part, _ in list(experiment.traverse_ingredients())]
    at_default = _AtDefault(computed.changes, {part.path for part in parts if part is not experiment})
    for name in named_configs:
        path = "" if name not in known else name.rpartition(".")[0]
        entries = [join_paths(path, entry) for entry in _entries(name, known)]
        found |= {entry: name for entry in entries if not at_default(entry)}
    for part in parts:
        for hook in part.config_hooks:
            if isinstance(hook, ConfigHook):
                found |= dict.fromkeys(hook.changed, f"hook {hook.function.__name__}")
    found |= dict.fromkeys((entry for entry, _ in iterate_flattened(updates)), _TYPED)
    for alias, target in aliases.items():
        origin = found.get(target) or found.get(alias)
        found |= {} if origin is None else {alias: origin, target: origin}
    found.setdefault("seed", _DRAWN if not _is_declared(experiment, "seed") else DEFAULT)
    missing = object()
    return {
        entry: origin
        for entry, origin in found.items()
        if origin != DEFAULT and get_by_dotted_path(computed.values, entry, missing) is not missing
    }


class _AtDefault:
    """Tells whether an entry that a named config or a file has set is at its default all the same.

    Args:
        changes: Sacred's summary of what was added, modified and documented.
        parts: Dotted paths of the ingredients.
    """

    def __init__(self, changes: Any, parts: Collection[str]) -> None:
        self._changed = {*changes.added, *changes.modified, *changes.typechanged}
        self._documented, self._parts = changes.docs, parts

    def __call__(self, entry: str) -> bool:
        # Within a dict whose keys are free, the dict itself is what has changed.
        for name in reversed(list(iter_prefixes(entry))):
            if name in self._parts:
                break
            if name in self._changed:
                return False
            if name in self._documented:
                break
        return True


def grouped(by_entry: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the entries by their origin, as a record has them: names with dots are no keys in MongoDB."""
    groups: dict[str, list[str]] = {}
    for entry, origin in sorted(by_entry.items()):
        groups.setdefault(origin, []).append(entry)
    return [{"origin": origin, "entries": entries} for origin, entries in groups.items()]


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
