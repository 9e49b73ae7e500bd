"""Checks that reject a typo before anything is recorded: is there such an entry, ingredient, named config?"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import sacred
from sacred.utils import (
    convert_to_nested_dict,
    get_by_dotted_path,
    is_prefix,
    iter_prefixes,
    iterate_flattened,
    join_paths,
    rel_path,
)

from sacristan.configs.files import find_file, names_beside
from sacristan.configs.map import freeze, is_group, to_plain
from sacristan.configs.nearest import nearest, suggestion
from sacristan.experiments.running.computed_config import ComputedConfig
from sacristan.ingredients.config.entry_types import adopt, conform, infer, misfit, misplaced
from sacristan.ingredients.config.ingredient import MapSignature
from sacristan.ingredients.config.named_configs import read_config_file
from sacristan.ingredients.config.scope import Scope, is_shipped, lenient
from sacristan.ingredients.errors import ConfigError, UnknownEntryError, UnknownNamedConfigError
from sacristan.observers.file.recorded_values import comes_back, is_form_of, opaque_in, read_back
from sacristan.observers.file.sacred_form import plain
from sacristan.observers.record.json_text import MAX_NOTED_LEVELS, is_deeper

_MAX_SEED = 2**32 - 1  # numpy's global seed takes no more


def nested(config_updates: Mapping[str, Any]) -> dict:
    """Return updates as plain nested dicts; names may be dotted at any depth."""
    for name in config_updates:
        if not isinstance(name, str):
            raise ConfigError(f"got a setting named {name!r} ({type(name).__name__}), expected the name of an entry")
    return convert_to_nested_dict(to_plain(config_updates))


def check_scopes(experiment: sacred.Experiment) -> None:
    """Reject config scopes that cannot be read, including those of named configs that are not used."""
    # As a list: Sacred takes what is not traversed to its end for a circle.
    for part, _ in list(experiment.traverse_ingredients()):
        for scope in (*part.configurations, *part.named_configs.values()):
            if isinstance(scope, Scope):
                scope.check()


def check_updates(
    experiment: sacred.Experiment, updates: Mapping[str, Any], named_configs: Sequence[str], *, force: bool = False
) -> None:
    """Check settings before the config is computed; `force` accepts an ingredient's seed without effect."""
    _check_named_configs(experiment, updates, named_configs)
    files = [read_config_file(name) for name in named_configs if Path(name).is_file()]
    for settings in (updates, *files):
        for path in _paths(experiment):
            values = get_by_dotted_path(settings, path, {})
            _check_group(path, values)
            if "seed" in values:
                values["seed"] = _check_seed(experiment, path, values["seed"], force)


def check_depth(config: Mapping[str, Any]) -> None:
    """Reject a config that is nested more deeply than a record can be."""
    for name, value in config.items():
        if is_deeper(value, MAX_NOTED_LEVELS - 1):
            raise ConfigError(
                f"{name}: got lists and dicts nested more than {MAX_NOTED_LEVELS} levels deep in the config, expected "
                "fewer; put the data into a file, and its path into the config"
            )


def check_made(config: Mapping[str, Any]) -> None:
    """Reject objects of a config file that no scope has a default for."""
    for name, value in iterate_flattened(config):
        if opaque := opaque_in(value):
            raise ConfigError(
                f"{name}: got {opaque!r} from a file, which cannot be made of it; set it in a config scope"
            )


def check_comes_back(experiment: sacred.Experiment, computed: ComputedConfig, command: str) -> None:
    """Reject a config that could not be read back from the record of its run, to resume or reproduce it."""
    odd = {name: value for name, value in iterate_flattened(computed.values) if not comes_back(value)}
    if not odd:
        return
    changed = _changed(computed)
    name = next((name for name in odd if name in changed), None)
    if name is None:
        again = dict(iterate_flattened(_read_back(experiment, computed, command)))
        name = next((name for name in odd if not is_form_of(again.get(name), odd[name])), None)
    if name is not None:
        raise ConfigError(
            f"{name}: got {odd[name]!r:.80} ({type(odd[name]).__name__}), which cannot be read back from the record: "
            "the run could not be resumed or reproduced; give numbers, texts, lists and dicts, and make the object of "
            "them in the run, or make it in the config scope, always the same; --force records it nevertheless"
        )


def _read_back(experiment: sacred.Experiment, computed: ComputedConfig, command: str) -> dict[str, Any]:
    """Return the config of a run started with the recorded one; empty if that is invalid."""
    recorded = read_back(json.loads(json.dumps(plain(computed.values))))
    try:
        with lenient(False):
            return ComputedConfig(experiment, command, recorded).values
    except ConfigError:
        return {}


def check_read(
    computed: ComputedConfig, updates: Mapping[str, Any], unread: Mapping[str, Sequence[str]], command: str
) -> None:
    """Reject settings of a call, other than defaults, that its command does not read."""
    for path, readers in unread.items():
        entries = iterate_flattened(get_by_dotted_path(updates, path, {}))
        for name, value in ((join_paths(path, entry), value) for entry, value in entries):
            if name in _changed(computed):
                raise ConfigError(
                    f"{name}: got {value!r}, but {command} does not read it; leave it out, or run a command that does: "
                    f"{', '.join(readers)}"
                )


def without_unread(computed: ComputedConfig, unread: Iterable[str]) -> dict[str, Any]:
    """Return the config without the tools (dotted paths) that its command does not read, unless a file sets them."""
    changed = _changed(computed)
    left_out = {path for path in unread if not any(is_prefix(path, name) for name in changed)}
    return {name: value for name, value in computed.values.items() if name not in left_out}


def _changed(computed: ComputedConfig) -> set[str]:
    changes = computed.changes
    return {*changes.added, *changes.modified, *changes.typechanged}


def check_settings(experiment: sacred.Experiment, config: Mapping[str, Any]) -> None:
    """Let each ingredient check its part of the config; see `Ingredient.check`."""
    # As a list: Sacred takes what is not traversed to its end for a circle.
    for ingredient, _ in list(experiment.traverse_ingredients()):
        own = get_by_dotted_path(config, ingredient.path) if ingredient is not experiment else config
        if own is None and getattr(ingredient, "is_tool", False):
            continue  # the command does not read it
        for check in getattr(ingredient, "checks", ()):
            check(freeze({} if own is None else own))


def _paths(experiment: sacred.Experiment) -> list[str]:
    """Return dotted paths of all ingredients; a list, as Sacred must end a traversal before the next."""
    return ["" if part is experiment else part.path for part, _ in experiment.traverse_ingredients()]


def _check_seed(experiment: sacred.Experiment, path: str, seed: Any, force: bool) -> int | None:
    name = join_paths(path, "seed")
    if seed is None:
        return None  # it is drawn
    seed = int(seed) if isinstance(seed, float) and seed.is_integer() else seed
    if type(seed) is not int or not 0 <= seed <= _MAX_SEED:
        raise ConfigError(f"{name}: got {seed!r}, expected an int from 0 to {_MAX_SEED}; write for example {name}=1")
    if path and not force and not _draws(experiment, path) and name not in _entry_names(experiment):
        raise ConfigError(f"{name}: got {seed}, but {path} draws no random numbers of its own; set seed={seed}")
    return int(seed)


def _draws(experiment: sacred.Experiment, path: str) -> bool:
    """Return whether a function of an ingredient, or one of its ingredients, depends on Sacred's seed."""
    below = [part for part, _ in experiment.traverse_ingredients() if part.path == path or is_prefix(path, part.path)]
    captured = [function for part in below for function in part.captured_functions]
    return any(f.uses_randomness or "seed" in f.signature.kwargs for f in captured)


def _check_group(path: str, values: Any) -> None:
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path}: got {values!r}, but {path} is an ingredient with entries of its own; "
            f"write {path}.ENTRY=VALUE (see print_config)"
        )


def _check_named_configs(experiment: sacred.Experiment, updates: Mapping[str, Any], names: Sequence[str]) -> None:
    available = list(dict(experiment.gather_named_configs()))
    for position, name in enumerate(names):
        if name not in available and not Path(name).is_file():
            following = names[position + 1] if position + 1 < len(names) else updates.get("", "VALUE")
            raise UnknownNamedConfigError(_misread(experiment, updates, available, name, following))
    if "" in updates:
        raise ConfigError(
            f"got `={updates['']}` without a name before it; write NAME={updates[''] or 'VALUE'}, without spaces"
        )


def _misread(
    experiment: sacred.Experiment, updates: Mapping[str, Any], available: list[str], name: str, following: str
) -> str:
    """Return the message for a word that is neither a named config nor a file; `following` is the next word."""
    unfinished = [entry for entry, value in iterate_flattened(updates) if entry and value == ""]
    if unfinished:
        return f"{unfinished[0]}: got nothing after `=`; write {unfinished[0]}={name}, without spaces"
    try:
        entries = _entry_names(experiment)
    except Exception:  # a scope raises, which shows once the name is right
        entries = set()
    if "" in updates or name in entries:
        return f"{name}: got no value, expected one after `=`, without spaces; write {name}={following}"
    if Path(name).suffix in (".yaml", ".yml", ".json"):
        path = Path(name)
        hint = suggestion(path.name, names_beside(name), "check the path", lambda near: str(path.with_name(near)))
        return f"{name}: there is no such config file; {hint}"
    entry, _, value = name.partition(" ")
    if value and entry in entries:
        return f"{name}: got a setting without `=`; write {entry}={value.strip()}"
    if set(name) & set("[]{},"):
        return f"{name}: got a part of a value that has spaces; quote the value: NAME='VALUE'"
    recipe = Path("configs", f"{name}.yaml")
    if find_file(recipe).is_file():
        return f"{name}: there is no such named config; did you mean {recipe}?"
    hint = suggestion(name, available)
    return f"{name}: there is no such named config, and a setting is written {name}=VALUE; {hint}"


def _entry_names(experiment: sacred.Experiment) -> set[str]:
    """Return the dotted names of all entries of the default config."""
    return set(_dotted(ComputedConfig(experiment, next(iter(experiment.commands)), {}).values))


def check_known(experiment: sacred.Experiment, computed: ComputedConfig) -> None:
    """Check that every entry that was set exists, or is an argument that the config fills in; suggest the nearest."""
    added = sorted(computed.changes.added)
    parameters = dict(_config_arguments(experiment, computed.function))
    arguments = [*parameters, *(join_paths(name, key) for name, each in parameters.items() for key in each.keys)]
    required, filled_in = _required(experiment), set[str]()
    declared = _dotted(computed.values, without=added)
    _check_groups(experiment, computed)
    for name in added:
        value = get_by_dotted_path(computed.values, name)
        if is_group(value):
            continue
        # A dict for an argument that no scope declares is set as a whole, or by its keys.
        prefixes = [each for each in iter_prefixes(name) if each not in declared]
        argument = next((each for each in prefixes if each in parameters), None)
        if argument is not None and parameters[argument].has(rel_path(argument, name)):
            _check_argument(computed, argument, parameters[argument])
        elif owner := next((each for each in prefixes if _may_give(required, each, computed.values)), None):
            filled_in.add(owner)
        else:
            group = _own_dict(experiment, name, declared)
            if not group or not _may_add(computed, name, group, declared):
                hint = _hint(name, declared, arguments, group)
                raise UnknownEntryError(f"{name}: got {value!r}, but there is no such entry; {hint}")
    _reject_passing(required, filled_in)


def _may_give(required: Mapping[str, list[Any]], name: str, config: Mapping[str, Any]) -> bool:
    """Return whether the config can fill in an argument that a captured function requires."""
    return any(_may_leave_out(function, name, config) for function in required.get(name, ()))


def _own_dict(experiment: sacred.Experiment, name: str, declared: Sequence[str]) -> str:
    """Return the name of the script's own dict that an unknown entry would be added to; empty if there is none."""
    parts = {part.path: part for part, _ in list(experiment.traverse_ingredients()) if part is not experiment}
    group = max((each for each in iter_prefixes(name) if each in declared), key=len, default="")
    owner = next((parts[each] for each in reversed([*iter_prefixes(group)]) if each in parts), experiment)
    return "" if group in parts or getattr(owner, "is_of_lab", False) else group


def _may_add(computed: ComputedConfig, name: str, group: str, declared: Sequence[str]) -> bool:
    """Return whether a named config of a script may add an entry to a dict, or a config file one that is not a typo."""
    if name in computed.gathered:
        return True
    siblings = [rel_path(group, each) for each in declared if each.rpartition(".")[0] == group]
    if name not in computed.of_files or nearest(rel_path(group, name).partition(".")[0], siblings):
        return False
    computed.run_logger.warning('Added new config entry: "%s"', name)  # as Sacred does
    return True


def warn_of_kinds(computed: ComputedConfig) -> None:
    """Warn, as Sacred does, of entries of a script whose setting has another type than the default."""
    for name, (old, new) in computed.gathered.changed_kinds.items():
        message = 'Changed type of config entry "%s" from %s to %s'
        computed.run_logger.warning(message, name, old.__name__, new.__name__)


def _check_groups(experiment: sacred.Experiment, computed: ComputedConfig) -> None:
    """Reject plain values for ingredients."""
    for path in _paths(experiment):
        if "" in get_by_dotted_path(computed.values, path, {}):
            _check_group(path, get_by_dotted_path(computed.values, path)[""])


def _hint(name: str, entries: list[str], parameters: list[str], own: str) -> str:
    """Return the entry or argument that a name was most likely meant to be, or those of the same group."""
    leaf = name.rpartition(".")[2]
    others = [other for other in (*entries, *parameters) if not is_prefix(other, name)]
    # What is like it elsewhere is not meant by the key of a dict.
    others = [other for other in others if not own or is_prefix(own, other) or other.rpartition(".")[2] == leaf]
    near = nearest(name, others)
    first, _, rest = name.partition(".")
    if near is None and rest and first not in entries and (argument := nearest(first, parameters)):
        near = join_paths(argument, rest)
    if near:
        return f"did you mean {near}?"
    group = name.rpartition(".")[0]
    siblings = [other.rpartition(".")[2] for other in entries if other.rpartition(".")[0] == group]
    way = f"; for a new key of {own}, declare it in the scope, or run with --force" if own else ""
    return f"{group or 'the experiment'} has: {', '.join(siblings) or 'no entries'}{way}"


def _required(experiment: sacred.Experiment) -> dict[str, list[Any]]:
    """Return the captured functions that require an argument, by the argument's dotted name."""
    required: dict[str, list[Any]] = {}
    for ingredient, _ in list(experiment.traverse_ingredients()):
        root = "" if ingredient is experiment else ingredient.path
        for captured in ingredient.captured_functions:
            signature = captured.__wrapped__.signature
            for name in signature.arguments:
                if name not in signature.kwargs and not name.startswith("_"):
                    required.setdefault(join_paths(root, captured.prefix, name), []).append(captured)
    return required


def _may_leave_out(function: Any, name: str, config: Mapping[str, Any]) -> bool:
    """Return whether a call may leave out an argument; it cannot if it has to pass a later one."""
    group, _, leaf = name.rpartition(".")
    entries, signature = get_by_dotted_path(config, group, {}), function.__wrapped__.signature
    following = signature.arguments[signature.arguments.index(leaf) + 1 :]
    return all(other in entries or other in signature.kwargs or other.startswith("_") for other in following)


def _reject_passing(required: Mapping[str, list[Any]], filled_in: set[str]) -> None:
    """Make a function's signature reject calls that pass an argument set in the config."""
    alone = {name: functions[0] for name, functions in required.items() if len(functions) == 1}
    for name, function in alone.items():
        signature = function.__wrapped__.signature
        if isinstance(signature, MapSignature):
            leaf = {name.rpartition(".")[2]}
            signature.only_from_config = signature.only_from_config - leaf | (leaf if name in filled_in else set())


@dataclasses.dataclass(frozen=True)
class _ConfigArgument:
    """An argument that the config fills in, with `inspect.Parameter.empty` or a default that may be strict."""

    default: Any
    is_strict: bool

    @property
    def keys(self) -> list[str]:
        """Dotted names of the entries of a dict default."""
        return _dotted(self.default) if isinstance(self.default, dict) else []

    def has(self, key: str) -> bool:
        """Return whether the argument may have a key; `key` is empty for the argument itself."""
        return not key or not self.keys or key in self.keys


def _check_argument(computed: ComputedConfig, name: str, parameter: _ConfigArgument) -> None:
    """Reject a value of the wrong type for an argument, and convert one of the right type."""
    value, default = get_by_dotted_path(computed.values, name), parameter.default
    if default is inspect.Parameter.empty:
        return
    try:
        fitting = conform(value, infer(default), name) if parameter.is_strict else adopt(value, default, name)
    except TypeError:
        if parameter.is_strict:
            raise ConfigError(misfit(name, value, infer(default), default)) from None
        raise ConfigError(misplaced(name, value, default, may_annotate=False)) from None
    if type(fitting) is not type(value) or fitting != value:
        computed.replace(name, fitting)


def _config_arguments(experiment: sacred.Experiment, command: Any) -> Iterator[tuple[str, _ConfigArgument]]:
    """Yield entries that only signatures declare: arguments of the command, and others' with a default."""
    for ingredient, _ in experiment.traverse_ingredients():
        root = "" if ingredient is experiment else ingredient.path
        for captured in ingredient.captured_functions:
            function = captured.__wrapped__
            for name in function.signature.arguments:
                if not name.startswith("_") and (captured == command or name in function.signature.kwargs):
                    default = function.signature.kwargs.get(name, inspect.Parameter.empty)
                    is_strict = name in function.__annotations__ or is_shipped(function.__code__.co_filename)
                    yield join_paths(root, captured.prefix, name), _ConfigArgument(default, is_strict)


def _dotted(config: Mapping[str, Any], without: Sequence[str] = ()) -> list[str]:
    """Return the dotted names of all entries and groups of entries, except those in `without`."""
    leaves = [name for name, _ in iterate_flattened(config) if name not in without]
    return list(dict.fromkeys(prefix for leaf in leaves for prefix in iter_prefixes(leaf)))
