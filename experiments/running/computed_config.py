"""Compute the config of an experiment, once, before there is a run, with its aliases and the origin of each value.

The phases are those of `sacred.initialize.create_run`, apart from the run, so that checks and aliases come in between.
An alias is a short name at the root for an ingredient's entry, such as `lr` for `optimizer.lr`.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import sacred
from sacred.config import ConfigDict
from sacred.config.config_summary import ConfigSummary
from sacred.config.custom_containers import make_read_only
from sacred.initialize import (
    create_scaffolding,
    distribute_config_updates,
    distribute_presets,
    gather_ingredients_topological,
    get_command,
    get_config_modifications,
    get_configuration,
    get_scaffolding_and_config_name,
    initialize_logging,
)
from sacred.randomness import create_rnd, get_seed
from sacred.run import Run
from sacred.utils import (
    convert_to_nested_dict,
    get_by_dotted_path,
    is_prefix,
    iter_prefixes,
    iterate_flattened,
    join_paths,
    recursive_update,
    rel_path,
    set_by_dotted_path,
)

from sacristan.configs.map import is_group
from sacristan.ingredients.config.ingredient import ConfigHook, make_writable
from sacristan.ingredients.config.named_configs import Gathered, keeping_opaque, read_config_file
from sacristan.ingredients.config.scope import Scope
from sacristan.ingredients.errors import ConfigError
from sacristan.observers.file.sacred_form import plain

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
        """Set the entry of each alias that only the root sets; if both are set, `follow` compares them."""
        for alias, target in self.targets.items():
            if alias in updates and get_by_dotted_path(updates, target, _UNSET) is _UNSET:
                set_by_dotted_path(updates, target, updates[alias])

    def follow(self, config: Mapping[str, Any], changes: ConfigSummary, updates: dict[str, Any]) -> bool:
        """Set both names where a scope gave one a value; return whether to compute again. Reject two values."""
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


class ComputedConfig:
    """The config of an experiment for one command.

    `updates` are nested, under both names of an alias; `named_configs` are in the order in which they apply.
    `changes` is Sacred's summary, `gathered` has values of named configs, `of_files` dotted names that files set, and
    `legacy_defaults` what settings meant before they existed, see `Scope.legacy`.
    """

    def __init__(
        self,
        experiment: sacred.Experiment,
        command: str,
        updates: Mapping[str, Any],
        named_configs: Sequence[str] = (),
        aliases: Aliases | None = None,
        log_level: str | int | None = None,
    ) -> None:
        parts = gather_ingredients_topological(experiment)
        self.pre_run_hooks = [hook for part in parts for hook in part.pre_run_hooks]
        self.post_run_hooks = [hook for part in parts for hook in part.post_run_hooks]
        self._functions = [function for part in parts for function in part.captured_functions]
        self._scaffolding = create_scaffolding(experiment, parts)
        self.function = get_command(self._scaffolding, command)
        self.of_files: set[str] = set()
        if experiment.logger is None:
            log_to_stderr()
        self.root_logger, self.run_logger = initialize_logging(experiment, self._scaffolding, log_level)
        self._apply_updates(convert_to_nested_dict(updates), named_configs, aliases or Aliases())
        self._evaluate_scopes(command)
        self.values: dict[str, Any] = get_configuration(self._scaffolding)
        self.changes = get_config_modifications(self._scaffolding)
        self.legacy_defaults = _legacy_defaults(experiment, parts)
        self.gathered = Gathered()

    def _apply_updates(self, updates: dict[str, Any], named_configs: Sequence[str], aliases: Aliases) -> None:
        """Pass to each ingredient the entries of it that the call and named configs set."""
        # The deepest first, so that an entry goes to the innermost ingredient.
        prefixes = sorted((path.split(".") for path in self._scaffolding if path), key=len, reverse=True)
        distribute_config_updates(prefixes, self._scaffolding, updates)
        for name in named_configs:
            scaffold, name_of_config = get_scaffolding_and_config_name(name, self._scaffolding)
            scaffold.gather_fallbacks()
            with keeping_opaque():
                entries = scaffold.run_named_config(name_of_config)
            distribute_presets(scaffold.path, prefixes, self._scaffolding, entries)
            for entry, value in iterate_flattened(entries):
                set_by_dotted_path(updates, join_paths(scaffold.path, entry), value)
            if Path(name).is_file():
                self.of_files.update(entry for entry, _ in iterate_flattened(entries))
        aliases.carry(updates)
        distribute_config_updates(prefixes, self._scaffolding, updates)

    def _evaluate_scopes(self, command: str) -> None:
        """Evaluate the config scopes and hooks of each ingredient after those of the ingredients that it uses."""
        for scaffold in self._scaffolding.values():
            if scaffold.config_scopes:  # which alone see them; Sacred compares them with NumPy
                scaffold.gather_fallbacks()
            scaffold.set_up_config()
            config = get_configuration(self._scaffolding)
            recursive_update(scaffold.config, scaffold.run_config_hooks(config, command, self.run_logger))

    def set_seeds(self, seed: int | None = None) -> None:
        """Set the seeds in the config, once, before `bind`; `seed` (None: drawn) if the experiment declares none."""
        root = self._scaffolding[""]
        if seed is not None:
            root.config.setdefault("seed", seed)
        for scaffold in reversed(list(self._scaffolding.values())):
            if isinstance(scaffold.config.get("seed"), float):  # a whole one, from a file
                scaffold.config["seed"] = int(scaffold.config["seed"])
            scaffold.set_up_seed()
        self.values = get_configuration(self._scaffolding)
        self.changes = get_config_modifications(self._scaffolding)

    def replace(self, name: str, value: Any) -> None:
        """Replace the value of an entry, by its dotted name."""
        path = max((path for path in self._scaffolding if is_prefix(path, name)), key=len)
        set_by_dotted_path(self._scaffolding[path].config, rel_path(path, name), value)
        set_by_dotted_path(self.values, name, value)

    def bind(self, run: Run) -> None:
        """Give all captured functions their config, their random stream and the run, until the next run is bound."""
        for scaffold in self._scaffolding.values():
            seed = scaffold.config.get("seed")
            scaffold.rnd = create_rnd(scaffold.seed if seed is None else seed)
            for function in scaffold._captured_functions:
                function.logger = scaffold.logger.getChild(function.__name__)
                function.rnd = create_rnd(get_seed(scaffold.rnd))
                function.run = run
                function.config = get_by_dotted_path(scaffold.get_fixture(), function.prefix, default={})
                if sacred.SETTINGS.CONFIG.READ_ONLY_CONFIG:
                    function.config = make_read_only(function.config)
        if not sacred.SETTINGS.CONFIG.READ_ONLY_CONFIG:
            make_writable(self._functions)


def _legacy_defaults(experiment: sacred.Experiment, parts: Sequence[sacred.Ingredient]) -> dict[str, Any]:
    defaults: dict[str, Any] = {}
    for part in parts:
        path = "" if part is experiment else part.path
        for scope in (scope for scope in part.configurations if isinstance(scope, Scope)):
            for name, value in scope.legacy_defaults.items():
                set_by_dotted_path(defaults, join_paths(path, name), value)
    return defaults


# ---------------------------------------------------------------------- origins

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

    Call it right after the config is computed: scopes and hooks know what the last call set. The result is a list of
    `{"origin": ..., "entries": [dotted names]}`, as MongoDB rejects keys with dots.
    """
    parts = [part for part, _ in list(experiment.traverse_ingredients())]
    origin_of = _of_named_configs(experiment, computed, named_configs)
    for hook in [hook for part in parts for hook in part.config_hooks if isinstance(hook, ConfigHook)]:
        origin_of |= dict.fromkeys(hook.changed, f"hook {hook.function.__name__}")
    origin_of |= dict.fromkeys((entry for entry, _ in iterate_flattened(updates)), _TYPED)
    for alias, target in aliases.items():
        origin = origin_of.get(target) or origin_of.get(alias)
        origin_of |= {} if origin is None else {alias: origin, target: origin}
    origin_of.setdefault("seed", _DEFAULT if _is_declared(experiment, "seed") else _DRAWN)
    return _grouped(origin_of, computed.values)


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
    configs_by_name = dict(experiment.gather_named_configs())
    parts = [part.path for part, _ in list(experiment.traverse_ingredients()) if part is not experiment]
    at_default = _AtDefault(computed.changes, parts)
    origin_of: dict[str, str] = {}
    for name in named_configs:
        path = "" if name not in configs_by_name else name.rpartition(".")[0]
        entries = [join_paths(path, entry) for entry in _entries(name, configs_by_name)]
        origin_of |= {entry: name for entry in entries if not at_default(entry)}
    return origin_of


class _AtDefault:
    """Checks whether an entry is at its default although a named config or file sets it; `parts` are ingredients."""

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


def _entries(name: str, scopes: Mapping[str, Any]) -> Iterable[str]:
    """Return the dotted names of the entries that a named config or file sets."""
    if Path(name).is_file():
        return [entry for entry, _ in iterate_flattened(read_config_file(name))]
    config = scopes.get(name)
    if isinstance(config, Scope):
        return config.has_set
    return [entry for entry, _ in iterate_flattened(config._conf)] if isinstance(config, ConfigDict) else ()


def _is_declared(experiment: sacred.Experiment, name: str) -> bool:
    return any(
        name in (config.has_set if isinstance(config, Scope) else getattr(config, "_conf", ()))
        for config in experiment.configurations
    )


def log_to_stderr() -> None:
    """Log to stderr in Sacred's format, from INFO on, unless the program has set up logging itself."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(levelname)s - %(name)s - %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class _Formatter(logging.Formatter):
    """Names a module of the lab by the last part of its name; the packages before it say nothing to a user."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        package, _, rest = record.name.partition(".")
        if rest and package == "sacristan":
            record = copy.copy(record)
            record.name = rest.rpartition(".")[2]
        return super().formatMessage(record)
