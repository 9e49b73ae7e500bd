"""`Ingredient`: Sacred's, with Map-injecting captured functions and strict config scopes."""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import sacred
from sacred import SETTINGS, dependencies
from sacred.config.signature import Signature
from sacred.utils import (
    MissingConfigError,
    get_by_dotted_path,
    is_prefix,
    iterate_flattened,
    join_paths,
    optional_kwargs_decorator,
)

from sacristan.configs import Map, MutableMap, freeze, to_plain
from sacristan.configs.nearest import suggestion
from sacristan.ingredients.config.entry_types import check_keys
from sacristan.ingredients.config.named_configs import read_config_file
from sacristan.ingredients.config.scope import DeclaredDict, NamedDict, Scope, is_shipped
from sacristan.ingredients.errors import ConfigError, MissingEntryError
from sacristan.observers.record.json_text import MAX_LEVELS, MAX_NOTED_LEVELS, is_deeper


class ConfigHook:
    """A config hook of an ingredient: `(config, command_name, logger) -> updates`.

    The function gets a `MutableMap` and returns it, changes of its own ingredient's entries, or None. `path` is that of
    these entries in the whole config; `changed` has the dotted names of what the last call changed.
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
    """Return the dotted names of the entries of `after` that have changed."""
    old = dict(iterate_flattened(before))
    return [name for name, value in iterate_flattened(after) if name not in old or not _equal(old[name], value)]


def _equal(first: Any, second: Any) -> bool:
    try:
        return first is second or bool(first == second and type(first) is type(second))
    except ValueError:  # arrays, which compare element by element
        return False


class MapSignature(Signature):
    """Fills in arguments from the config; no call may pass those `only_from_config`, which no scope declares."""

    only_from_config: frozenset[str] = frozenset()

    def construct_arguments(self, args: Any, kwargs: Any, options: dict, bound: bool = False) -> tuple[list, dict]:
        names = self._get_expected_args(bound)
        self._check_void_settings({*names[: len(args)], *kwargs}, options)

        def of_config(name: str, value: Any) -> Any:
            return _as_map(value) if isinstance(value, dict) and name in options else value

        args = [*map(of_config, names, args), *args[len(names) :]]
        kwargs = {name: of_config(name, value) for name, value in kwargs.items()}
        wanted = set(names) - set(kwargs)
        frozen = {name: _as_map(value) if name in wanted else value for name, value in options.items()}
        try:
            return super().construct_arguments(args, kwargs, frozen, bound)
        except MissingConfigError as error:
            free = self.get_free_parameters(args, kwargs, bound)
            missing = next(name for name in free if name not in options and name not in self.kwargs)
            raise MissingEntryError(self._missing_entry(missing, options)) from error

    def _missing_entry(self, name: str, options: dict) -> str:
        parameters = [other for other in options if not other.startswith("_")]
        hint = suggestion(name, parameters, "add it to the config, pass it in the call, or give a default")
        return f"{self.name}: got no value for the argument {name}; {hint}"

    def _check_void_settings(self, passed: set[str], options: dict) -> None:
        for name in passed & self.only_from_config:
            raise ConfigError(
                f"{name}: got {options.get(name)!r}, but {self.name} is given its {name} by the code that calls it; "
                "remove it"
            )


def _as_map(value: Any) -> Any:
    return value if isinstance(value, MutableMap) and not SETTINGS.CONFIG.READ_ONLY_CONFIG else freeze(value)


def make_writable(functions: Iterable[Any]) -> None:
    """Give captured functions configs that they may change, as READ_ONLY_CONFIG=False asks; shared parts stay so."""
    copies: dict[int, tuple[Any, Any]] = {}  # with the originals, whose ids stay theirs

    def writable(value: Any) -> Any:
        if id(value) not in copies:
            if isinstance(value, dict):
                copies[id(value)] = value, MutableMap({key: writable(item) for key, item in value.items()})
            elif isinstance(value, list):
                copies[id(value)] = value, [writable(item) for item in value]
            else:
                return value
        return copies[id(value)][1]

    for function in functions:
        function.config = writable(function.config)


class LabFunctions(sacred.Ingredient):
    """The decorators of an ingredient or experiment: captured functions get every dict of the config as a `Map`."""

    path: str

    @functools.cached_property
    def checks(self) -> list[Callable[[Map], None]]:
        return []

    def check(self, function: Callable[[Map], None]) -> Callable[[Map], None]:
        """Add a check of the ingredient's settings, called before a recorded command starts."""
        self.checks.append(function)
        return function

    @functools.cached_property
    def added_sources(self) -> list[Path]:
        return []

    def add_source_file(self, filename: str | Path) -> None:
        """Record a file with the sources of the experiment; imported modules are recorded anyway."""
        path = Path(filename).absolute()
        if not path.is_file():
            raise ConfigError(f"add_source_file: got {str(filename)!r}, but there is no such file; check the path")
        self.added_sources.append(path)

    @optional_kwargs_decorator
    def capture(self, function: Callable, prefix: str | None = None) -> Callable:
        """Turn a function into a captured function, as Sacred does, with dicts as `Map`."""
        if function in self.captured_functions:
            return function
        captured = super().capture(function, prefix=prefix)
        captured.__wrapped__.signature = MapSignature(captured.__wrapped__)
        return captured

    def command(
        self,
        function: Callable | None = None,
        prefix: str | None = None,
        unobserved: bool = False,
        needs: Sequence[str] = (),
    ) -> Any:
        """Add a command, as Sacred does."""
        if function is None:
            return functools.partial(self.command, prefix=prefix, unobserved=unobserved, needs=needs)
        captured = super().command(function, prefix=prefix, unobserved=unobserved)
        captured.needs = tuple(needs)
        return captured

    @property
    def _config_path(self) -> str:
        """Dotted path of the entries in the whole config, for messages."""
        return self.path

    def config(self, function: Callable) -> Scope:
        """Add a config scope: a function whose local variables are the entries; see `ingredients/config/scope.py`."""
        scope = Scope(function, self._config_path)
        self.configurations.append(scope)
        return scope

    def named_config(self, function: Callable) -> Scope:
        """Add a named config: a config scope that is evaluated where it is asked for by its name."""
        scope = Scope(function, self._config_path, strict=False)
        self._add_named_config(function.__name__, scope)
        return scope

    def add_config(self, cfg_or_file: Any = None, **entries: Any) -> None:
        """Add config entries from a dict, a JSON or YAML file, or keywords."""
        is_strict = is_shipped(sys._getframe(1).f_code.co_filename)
        plain = _entries("add_config", cfg_or_file, entries)
        self.configurations.append(DeclaredDict(plain, self._config_path, is_strict=is_strict))

    def add_named_config(self, name: str, cfg_or_file: Any = None, **entries: Any) -> None:
        """Add a named config from a dict, a JSON or YAML file, or keywords."""
        plain = _entries("add_named_config", cfg_or_file, entries)
        self._add_named_config(name, NamedDict(plain, name, self._config_path))

    def config_hook(self, function: Callable) -> Callable:
        """Add a config hook, `(config, command_name, logger) -> updates`; see the module."""
        super().config_hook(function)
        self.config_hooks[-1] = ConfigHook(function, self, self._config_path)
        return function


def _entries(method: str, cfg_or_file: Any, entries: dict) -> dict:
    if cfg_or_file is None and not entries:
        raise ConfigError(f"{method}: got no entries; give a dict, a file or keywords")
    if cfg_or_file is None:
        cfg_or_file = entries
    elif entries:
        raise ConfigError(f"{method}: got a dict or file and keywords; give the entries in one of the two ways")
    if isinstance(cfg_or_file, str | Path):
        return read_config_file(cfg_or_file)
    if not isinstance(cfg_or_file, Mapping):
        kind = type(cfg_or_file).__name__
        raise ConfigError(f"{method}: got {cfg_or_file!r} ({kind}), expected a dict, the name of a file, or keywords")
    if is_deeper(cfg_or_file, MAX_LEVELS):
        raise ConfigError(
            f"{method}: got lists and dicts that are within themselves, or too many levels deep, expected a config of "
            f"up to {MAX_NOTED_LEVELS} levels; put the data into a file, and its path into the config"
        )
    plain = to_plain(cfg_or_file)
    check_keys(method, plain)
    return plain


class Ingredient(LabFunctions):
    """A reusable part of experiments: config, named configs, captured functions, commands.

    Its config is in the experiment's under its name: `python exp.py with noise.level=0.5`. Captured functions get the
    arguments that a call leaves out from there; `_config` is all of it, as a `configs.Map`.

    Args:
        path: Its name.
        ingredients: Ingredients that it builds on itself.
        is_tool: Whether only some commands read its settings: its own, and those that name it in `needs`. Other runs
            neither print nor record them, and reject them on the command line.
        **options: Further arguments of `sacred.Ingredient`.

    Example:
        noise = Ingredient("noise")

        @noise.config
        def config():
            # standard deviation of the noise, in those of the inputs
            level = 0.5

        @noise.capture
        def add_noise(inputs, level):
            return inputs + level * torch.randn_like(inputs)

        ex = Experiment("noisy", ingredients=[noise], interactive=True)
        ex.main(lambda: add_noise(torch.zeros(4)))
        ex.run(config_updates={"noise.level": 0.0})
    """

    def __init__(
        self, path: str, ingredients: Sequence[sacred.Ingredient] = (), *, is_tool: bool = False, **options: Any
    ) -> None:
        caller = sys._getframe(1).f_globals
        self.is_tool = is_tool
        look_once_at_sources()
        options.setdefault("save_git_info", False)
        self._globals = options.pop("_caller_globals", caller)
        super().__init__(path, ingredients, _caller_globals=self._globals, **options)

    @property
    def is_of_lab(self) -> bool:
        """True for an ingredient of the package `ingredients`."""
        return self._globals.get("__name__", "").partition(".")[0] == __name__.partition(".")[0]

    def twin(self, path: str) -> Ingredient:
        """Return a copy of this ingredient under another name, with its own config.

        Its captured functions are attributes of the copy:

            critic_optimizer = optimizer.ingredient.twin("critic_optimizer")
            critic_optimizer.make_optimizer(critic)

        Args:
            path: Name of the copy.
        """
        twin = type(self)(
            path, self.ingredients, is_tool=self.is_tool, _caller_globals=self._globals, base_dir=self.base_dir
        )
        twin.configurations = [scope.at(path) for scope in self.configurations]
        twin.named_configs = {name: config.at(path) for name, config in self.named_configs.items()}
        twin.config_hooks = [hook.at(twin, path) for hook in self.config_hooks]
        twin.checks.extend(self.checks)
        twin.added_sources.extend(self.added_sources)
        self._copy_functions(twin)
        return twin

    def _copy_functions(self, twin: Ingredient) -> None:
        modules: dict[int, dict] = {}
        for captured in self.captured_functions:
            # Sacred keeps a captured function's state on the function, so the twin needs functions of its own.
            function, name = captured.__wrapped__, captured.__name__
            names = modules.setdefault(id(function.__globals__), dict(function.__globals__))
            again = twin.capture(_copy_function(function, names), prefix=captured.prefix)
            if names.get(name) is captured:
                # The twin's functions call each other, not the original's.
                names[name] = again
            if name in self.commands:
                again.unobserved, again.needs = captured.unobserved, captured.needs
                twin.commands[name] = again
            for mine, its in (self.pre_run_hooks, twin.pre_run_hooks), (self.post_run_hooks, twin.post_run_hooks):
                if captured in mine:
                    its.append(again)

    def __getattr__(self, name: str) -> Callable:
        for captured in self.__dict__.get("captured_functions", ()):
            if captured.__name__ == name:
                return captured
        raise AttributeError(f"the ingredient {self.__dict__.get('path')!r} has no function {name!r}")


@functools.cache
def look_once_at_sources() -> None:
    """Make Sacred look up each module's file once, not again for each ingredient that imports it."""
    is_local_source, real = dependencies.is_local_source, functools.lru_cache(4096)(os.path.realpath)

    @functools.lru_cache(4096)  # which Sacred asks twice of each, for sources and for dependencies
    def is_local(filename: str, modname: str, experiment_path: str) -> bool:
        below = os.path.join(real(experiment_path), "")  # noqa: PTH118 - of text, a tenth of the time
        return real(filename).startswith(below) and is_local_source(filename, modname, experiment_path)

    dependencies.is_local_source = is_local


def _copy_function(function: Callable, names: dict) -> Callable:
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__annotations__ = function.__annotations__
    copy.__doc__ = function.__doc__
    copy.__module__ = function.__module__
    return copy
