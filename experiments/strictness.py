"""The checks that stop a run after a typo, before anything is recorded and before torch is imported.

Types are checked by the scopes themselves (`ingredients.scope`), when an update meets its default. Here stand the
checks that need the whole experiment: is there such an entry, such an ingredient, such a named config?
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacred.utils import convert_to_nested_dict, get_by_dotted_path, iter_prefixes, iterate_flattened, join_paths

from configs import to_plain
from ingredients.entry_types import conform, describe, infer, nearest
from ingredients.errors import ConfigError

if TYPE_CHECKING:
    from experiments.experiment import Experiment

__all__ = ["check_assignments", "check_known", "check_updates", "nested"]

_MAX_SEED = 2**32 - 1  # numpy's global seed takes no more


def check_assignments(argv: str | Sequence[str]) -> None:
    """Refuse assignments after `with` that contradict each other's shape, such as `lr=1 lr.x=2`.

    Raises:
        ConfigError: If one assignment makes a plain value of what another one takes for a group of entries.
    """
    words = shlex.split(argv) if isinstance(argv, str) else list(argv)
    words = words[words.index("with") + 1 :] if "with" in words else []
    names = [word.partition("=")[0].strip() for word in words if "=" in word and not word.startswith("-")]
    for name in names:
        for prefix in list(iter_prefixes(name))[:-1]:
            if prefix in names:
                raise ConfigError(
                    f"{prefix} and {name}: got both, but {prefix} cannot be one value and a group of entries; "
                    "give one of them"
                )


def nested(config_updates: Mapping[str, Any]) -> dict:
    """Return updates with dotted names as plain nested dicts."""
    return convert_to_nested_dict(to_plain(config_updates))


def check_updates(experiment: Experiment, updates: Mapping[str, Any], named_configs: Sequence[str]) -> None:
    """Check what can be checked before the config is computed.

    Raises:
        ConfigError: If a named config does not exist, an ingredient is given a plain value, or the seed is no seed.
    """
    _check_named_configs(experiment, updates, named_configs)
    for ingredient, _ in experiment.traverse_ingredients():
        if ingredient is experiment:
            continue
        value = get_by_dotted_path(updates, ingredient.path, {})
        if not isinstance(value, dict):
            raise ConfigError(
                f"{ingredient.path}: got {value!r}, but {ingredient.path} is an ingredient with entries of its own; "
                f"write {ingredient.path}.ENTRY=VALUE (see print_config)"
            )
    seed = updates.get("seed", 0)
    if type(seed) is not int or not 0 <= seed <= _MAX_SEED:
        raise ConfigError(f"seed: got {seed!r}, expected an int from 0 to {_MAX_SEED}; write for example seed=1")


def _check_named_configs(experiment: Experiment, updates: Mapping[str, Any], names: Sequence[str]) -> None:
    known = dict(experiment.gather_named_configs())
    for position, name in enumerate(names):
        if name in known or Path(name).is_file():
            continue
        following = names[position + 1] if position + 1 < len(names) else updates.get("", "VALUE")
        unfinished = [entry for entry, value in iterate_flattened(updates) if entry and value == ""]
        if unfinished:
            raise ConfigError(f"{unfinished[0]}: got nothing behind `=`; write {unfinished[0]}={name}, without spaces")
        if "" in updates or name in _entry_names(experiment):
            raise ConfigError(
                f"{name}: got no value, expected one behind `=`, without spaces; write {name}={following}"
            )
        if Path(name).suffix in (".yaml", ".yml", ".json"):
            there = [str(path) for path in Path(name).parent.glob("*.*")] if Path(name).parent.is_dir() else []
            near = nearest(name, there) if there else None
            hint = f"did you mean {near}?" if near else "check the path"
            raise ConfigError(f"{name}: there is no such config file; {hint}")
        near = nearest(name, list(known))
        hint = f"did you mean {near}?" if near else f"there are: {', '.join(known) or 'none'}"
        raise ConfigError(f"{name}: there is no such named config, and a setting is written {name}=VALUE; {hint}")
    if "" in updates:
        raise ConfigError(
            f"got `={updates['']}` without a name before it; write NAME={updates[''] or 'VALUE'}, without spaces"
        )


def _entry_names(experiment: Experiment) -> set[str]:
    """Return the dotted names of all entries of the default config."""
    from sacred.initialize import create_run

    command = next(iter(experiment.commands))
    return set(_dotted(create_run(experiment, command, {}, force=True).config))


def check_known(experiment: Experiment, run: Any) -> None:
    """Check that every entry that was set exists, now that the config is computed.

    An entry that only the command about to run takes, as an argument, exists too.

    Raises:
        ConfigError: If one does not exist; the message names the nearest that does.
    """
    added = sorted(run.config_modifications.added)
    parameters = dict(_parameters(experiment, run.main_function))
    known = _dotted(run.config, without=added)
    for name in added:
        value = get_by_dotted_path(run.config, name)
        if isinstance(value, dict) and value:
            continue
        if name in parameters:
            _check_parameter(name, value, parameters[name])
            continue
        near = nearest(name, known)
        group = name.rpartition(".")[0]
        siblings = [other.rpartition(".")[2] for other in known if other.rpartition(".")[0] == group]
        hint = (
            f"did you mean {near}?"
            if near
            else f"{group or 'the experiment'} has: {', '.join(siblings) or 'no entries'}"
        )
        raise ConfigError(f"{name}: got {value!r}, but there is no such entry; {hint}")


def _check_parameter(name: str, value: Any, default: Any) -> None:
    kind = Any if default is inspect.Parameter.empty else infer(default)
    try:
        conform(value, kind)
    except TypeError:
        raise ConfigError(
            f"{name}: got {value!r}, expected {describe(kind)}; write for example {name}={default}"
        ) from None


def _parameters(experiment: Experiment, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and default of every entry that only a captured function's signature declares.

    The arguments of the command count, and those of other functions when they have a default: what has none is
    handed over by the caller, and setting it would have no effect.
    """
    for ingredient, _ in experiment.traverse_ingredients():
        root = "" if ingredient is experiment else ingredient.path
        for captured in ingredient.captured_functions:
            for name, parameter in inspect.signature(captured.__wrapped__).parameters.items():
                if name.startswith("_"):
                    continue
                if captured == command or parameter.default is not inspect.Parameter.empty:
                    yield join_paths(root, captured.prefix, name), parameter.default


def _dotted(config: Mapping[str, Any], without: Sequence[str] = ()) -> list[str]:
    """Return the dotted names of all entries and groups of entries, less the entries `without`."""
    leaves = [name for name, _ in iterate_flattened(config) if name not in without]
    return list(dict.fromkeys(prefix for leaf in leaves for prefix in iter_prefixes(leaf)))
