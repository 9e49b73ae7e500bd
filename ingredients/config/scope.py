"""Config scopes with documentation for every entry, declared types, and no run after a typo.

A scope is a function whose local variables become the entries of an ingredient's config, as in Sacred. The lab adds:

* An annotation declares the type of an entry (`path: str | None = None`); see
  `sacristan.ingredients.config.entry_types`.
* A comment above or after an entry documents it, at every depth of a literal dict.
* Docstrings, and names that are imported inside the scope, are no entries.
* Classes, functions and modules are entries; an update gives them by their dotted names.
* An update of the wrong type is rejected at once, before entries that depend on it are computed. Annotations, and all
  scopes of the lab, are strict. In a script's own scopes, a default says the kind of an entry at most.

A dict that is empty by default is free-form: the code that receives it checks its keys.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sacred.config import ConfigDict, ConfigScope
from sacred.config.config_summary import ConfigSummary
from sacred.config.custom_containers import DogmaticDict
from sacred.config.utils import dogmatize, normalize_or_die, recursive_fill_in, undogmatize
from sacred.utils import ConfigError as SacredConfigError
from sacred.utils import get_by_dotted_path, iterate_flattened, join_paths, set_by_dotted_path

from sacristan.configs import to_plain
from sacristan.configs.map import is_group
from sacristan.configs.nearest import suggestion
from sacristan.ingredients.config.entry_types import adopt, check_items, check_keys, conform, infer, misfit, misplaced
from sacristan.ingredients.config.named_configs import kinds_of, named_config_of, note, note_kind
from sacristan.ingredients.config.scope_source import ScopeSource, read_scope
from sacristan.ingredients.errors import ConfigError, UnknownEntryError
from sacristan.observers.file.recorded_values import is_form_of, opaque_in
from sacristan.observers.record.object_names import object_name

_SHIPPED = tuple(str(Path(__file__).resolve().parents[2] / name) + os.sep for name in ("experiments", "ingredients"))

# Types that JSON has; a dict is compared entry by entry.
_PLAIN = (bool, int, float, str, dict, type(None))
_UNKNOWN = object()

_lenient = contextvars.ContextVar("lenient", default=False)


@contextlib.contextmanager
def lenient(active: bool) -> Iterator[None]:
    """Accept values of the wrong type in the block, as `--force` does."""
    token = _lenient.set(active)
    try:
        yield
    finally:
        _lenient.reset(token)


def is_shipped(file: str) -> bool:
    """Return whether a source file belongs to the lab, whose types are strict; `file` is a `co_filename`."""
    return os.path.realpath(file).startswith(_SHIPPED)


class _CheckedEntries(DogmaticDict):
    """Sacred's dict of fixed entries, which also holds each of them to its default's type."""

    def __init__(
        self,
        updates: dict,
        path: str = "",
        declared: dict[str, Any] | None = None,
        owner: str | None = None,
        *,
        is_strict: bool = True,
        is_scope: bool = False,
    ) -> None:
        super().__init__(dict(updates))
        self._is_strict, self._is_scope = is_strict, is_scope
        self._updates = updates
        self._path = path
        self._owner = path if owner is None else owner
        self._declared = declared or {}
        self._met: set[str] = set()
        self.replaced: dict[str, Any] = {}  # the defaults of entries that are updated

    def __setitem__(self, key: str, default: Any) -> None:
        if key in self._updates:
            self.replaced[key] = default
            kind = self._declared.get(key, infer(default))
            self.fixed[key] = self._fit(key, self._updates[key], kind, default)
            self._met.add(key)
        elif key in self._declared:
            default = self._fit(key, default, self._declared[key], default)
        super().__setitem__(key, default)

    def _fit(self, key: str, value: Any, kind: Any, default: Any) -> Any:
        name = join_paths(self._path, key)
        check_items(name, value, default)
        is_declared = key in self._declared
        is_strict = self._is_strict or is_declared
        value = self._fitted(name, value, kind, default, widens=not is_declared, is_strict=is_strict)
        if key in self._updates:
            # Sacred applies the updates once more after the config hooks: as the type they have now.
            self._updates[key] = value
        if isinstance(value, dict):
            is_nested = is_group(value) and _is_group(default)
            return _CheckedEntries(value, name, owner=self._owner, is_strict=is_strict) if is_nested else value
        return dogmatize(value)

    def _fitted(self, name: str, value: Any, kind: Any, default: Any, *, widens: bool, is_strict: bool) -> Any:
        try:
            value = self._conformed(name, value, kind, default, widens=widens, is_strict=is_strict)
        except TypeError:
            if _lenient.get():
                return value
            by = named_config_of(name, value)
            source = f" (the named config {by} sets it)" if by else ""
            if is_strict:
                raise ConfigError(f"{misfit(name, value, kind, default)}{source}") from None
            may_annotate = self._is_scope and name == join_paths(self._path, name.rpartition(".")[2])
            raise ConfigError(f"{misplaced(name, value, default, may_annotate=may_annotate)}{source}") from None
        if isinstance(value, dict) and value and isinstance(default, dict) and default:
            is_nested = is_group(value) and _is_group(default)
            return value if is_nested else self._merged(name, value, default, is_strict=is_strict)
        return value

    def _merged(self, name: str, update: dict, default: dict, *, is_strict: bool) -> dict:
        """Update a dict whose keys are not strings; on the command line, `name.0` is the entry with the key 0."""
        merged, by_text = dict(default), {str(key): key for key in default}
        for key, value in sorted(update.items(), key=lambda entry: isinstance(entry[0], str)):  # what was typed last
            target = key if key in default else by_text.get(key, _UNKNOWN)
            if target is _UNKNOWN:
                if not _lenient.get():
                    raise UnknownEntryError(
                        f"{name}: got the key {key!r}, expected one of {', '.join(map(repr, default))}"
                    )
                merged[key] = value
            else:
                kind, entry = infer(default[target]), f"{name}.{target}"
                merged[target] = self._fitted(entry, value, kind, default[target], widens=True, is_strict=is_strict)
        return merged

    def _conformed(self, name: str, value: Any, kind: Any, default: Any, *, widens: bool, is_strict: bool) -> Any:
        """Convert a value to a type that the entry accepts: its default's, or a named config's of the same script."""
        is_entry = not (isinstance(value, dict) and isinstance(default, dict) and default)
        opaque = opaque_in(value) if is_entry else None
        is_plain = type(default) in _PLAIN or isinstance(default, Mapping)
        if is_entry and (opaque or not is_plain) and is_form_of(value, default):
            return normalize_or_die(undogmatize(default))  # neither a lambda nor an object of the author can be read
        if opaque:
            raise ConfigError(
                f"{name}: got {opaque!r} from a file, which can only stand for an equal default, and the default here "
                f"differs; restore it, give plain values or a dotted name, or leave {name} out of the file"
            )
        if value is None and name == join_paths(self._owner, "seed"):
            return None  # it is drawn
        for each in (kind, *(kinds_of(name, self._owner) if widens else ())):
            with contextlib.suppress(TypeError):
                return conform(value, each, name)
        if is_strict:
            raise TypeError
        value = adopt(value, undogmatize(default), name)
        note_kind(name, undogmatize(default), value)
        return value

    def take_over(self, key: str, value: Any) -> None:
        """Set an entry that an earlier scope has computed; its updates have not been matched to a default here."""
        self[key] = value
        self._forget(key)

    def _forget(self, key: str) -> None:
        value = dict.__getitem__(self, key)
        if isinstance(value, _CheckedEntries):
            for inner in value:
                value._forget(inner)
        else:
            self._met.discard(key)

    def revelation(self) -> set[str]:
        """Fill in the updates that have no default, and return their dotted names."""
        unknown = set()
        for key, value in self._updates.items():
            if key not in self._met:
                if not dict.__contains__(self, key):
                    # A copy: earlier scopes fill in its entries, which are no updates of the scopes to come.
                    dict.__setitem__(self, key, to_plain(value))
                inner = iterate_flattened(value) if isinstance(value, dict) else ()
                unknown |= {key} | {join_paths(key, name) for name, _ in inner}
            elif isinstance(self[key], _CheckedEntries):
                unknown |= {join_paths(key, name) for name in self[key].revelation()}
        return unknown


def _is_group(default: Any) -> bool:
    return isinstance(default, dict) and is_group(default)


class _NotedEntries(DogmaticDict):
    """Sacred's dict of fixed entries, which also remembers what a named config sets them to."""

    def __init__(self, fixed: dict) -> None:
        super().__init__({key: dogmatize(value) for key, value in fixed.items()})
        self.assigned: dict[str, Any] = {}

    def __setitem__(self, key: str, value: Any) -> None:
        self.assigned[key] = value
        super().__setitem__(key, value)

    def take_over(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)


class NamedDict(ConfigDict):
    """A named config given as a dict or a file."""

    def __init__(self, entries: dict, name: str, path: str) -> None:
        super().__init__(entries)
        self._name, self._path = name, path

    def at(self, path: str) -> NamedDict:
        """Return these entries as those of the ingredient at `path`."""
        return NamedDict(self._conf, self._name, path)

    def __call__(self, fixed: dict | None = None, preset: dict | None = None, fallback: Any = None) -> ConfigSummary:
        note(self._name, self._path, self._conf)
        return super().__call__(fixed, preset, fallback)


class DeclaredDict(ConfigDict):
    """A config given as a dict or a file; its entries are held to the types of their values, as a scope's are."""

    def __init__(self, entries: dict, path: str, *, is_strict: bool = True) -> None:
        super().__init__(entries)
        self._path, self._is_strict = path, is_strict

    def at(self, path: str) -> DeclaredDict:
        """Return these entries as those of the ingredient at `path`."""
        return DeclaredDict(self._conf, path, is_strict=self._is_strict)

    def __call__(self, fixed: dict | None = None, preset: dict | None = None, fallback: Any = None) -> ConfigSummary:
        entries = _CheckedEntries(fixed or {}, self._path, is_strict=self._is_strict)
        entries.update(to_plain(self._conf))
        summary = ConfigSummary(entries.revelation(), entries.modified, entries.typechanges)
        recursive_fill_in(entries, preset or {})
        summary.update(normalize_or_die(entries))
        return summary


class Scope(ConfigScope):
    """A config scope of one ingredient, whose `path` is for messages.

    A function that does more than set names is rejected when it is called or checked, not where it is declared, so that
    the command line ends with one line. A named config is not `strict`: its entries declare no types. `has_set` are the
    dotted names that the last call set, and `legacy_defaults` what they meant before they existed: as `legacy` says,
    else the default in a scope of the lab. Of the entries of other scopes nobody knows that.
    """

    def __init__(self, function: Callable, path: str = "", *, strict: bool = True) -> None:
        # Sacred's constructor would read the function twice more; these are the attributes that it sets.
        self._error: ConfigError | None = None
        try:
            source = read_scope(function)
        except ConfigError as error:
            self._error, source = error, ScopeSource([], {}, {}, frozenset(), compile("", "", "exec"))
        self.args = source.arguments
        self._func = function
        self._body_code = source.code
        self._var_docs = {"seed": "the random seed for this experiment"} | source.docs
        self.__doc__ = function.__doc__
        self._path = path
        self._strict = strict
        self._declared = source.declared if strict else {}
        self._imported = source.imported
        self._legacy: dict[str, Any] = {}
        self.has_set: frozenset[str] = frozenset()
        self.legacy_defaults: dict[str, Any] = {}

    def check(self) -> None:
        """Raise `ConfigError` if the function is not a config scope."""
        if self._error is not None:
            raise self._error

    def at(self, path: str) -> Scope:
        """Return this scope as that of the ingredient at `path`."""
        scope = Scope(self._func, path, strict=self._strict)
        scope._var_docs, scope._legacy = dict(self._var_docs), dict(self._legacy)
        return scope

    def document(self, **docs: str) -> None:
        """Describe computed entries, which have no line of their own for a comment; `__` means the dot of a name."""
        self._var_docs.update({name.replace("__", "."): text for name, text in docs.items()})

    def legacy(self, **values: Any) -> None:
        """Declare what entries meant before they existed; `__` is the dot of a nested name.

        An unfinished run or a checkpoint that was recorded without an entry counts as one with this value: a run at the
        same value resumes it, and a fork keeps all that depends on it. Entries of the lab mean their defaults unless
        this says otherwise; in your own scopes, an entry that was added makes another config unless this is called.

            @ex.config
            def config():
                # probability of dropping a whole token
                token_dropout = 0.1

            config.legacy(token_dropout=0.0)
        """
        self._legacy.update({name.replace("__", "."): value for name, value in values.items()})

    def __call__(self, fixed: dict | None = None, preset: dict | None = None, fallback: Any = None) -> ConfigSummary:
        self.check()
        preset, fallback = preset or {}, fallback or {}
        entries = self._checked(fixed or {}) if self._strict else _NotedEntries(fixed or {})
        self._evaluate(entries, preset, fallback)
        if isinstance(entries, _NotedEntries):
            assigned = {key: undogmatize(value) for key, value in entries.assigned.items() if key in entries}
            note(self._func.__name__, self._path, assigned)
        else:
            self._check_ingredients(entries, fallback)
            self.legacy_defaults = self._defaults_before(entries)
        self.has_set = frozenset(
            entry for entry, value in iterate_flattened(dict(entries)) if not _is_given(entry, value, self.args, preset)
        )
        added = entries.revelation()
        summary = ConfigSummary(
            added, entries.modified, entries.typechanges, entries.fallback_writes, docs=self._var_docs
        )
        recursive_fill_in(entries, preset)
        check_keys(f"the config scope {self._func.__name__}", dict(entries))
        summary.update({key: normalize_or_die(value) for key, value in entries.items()})
        return summary

    def _checked(self, fixed: dict) -> _CheckedEntries:
        is_strict = is_shipped(self._func.__code__.co_filename)
        return _CheckedEntries(fixed, self._path, self._declared, is_strict=is_strict, is_scope=True)

    def _evaluate(
        self, entries: _CheckedEntries | _NotedEntries, preset: Mapping[str, Any], fallback: Mapping[str, Any]
    ) -> None:
        """Run the body with `entries` as local variables; earlier scopes made `preset`, ingredients `fallback`."""
        visible = {}
        for name in self.args:
            if name in preset:
                entries.take_over(name, preset[name])
            elif name in fallback:
                visible[name] = fallback[name]
            else:
                available = ", ".join(sorted({*preset, *fallback} - {"_log"}))
                raise ConfigError(
                    f"a config scope of {self._path or 'the experiment'} asks for {name!r}; there is: {available}"
                )
        entries.fallback = visible
        names = dict(self._func.__globals__)
        with SacredConfigError.track(entries):
            exec(self._body_code, names, entries)
        # For functions among the entries, which look up there what they do not define.
        names |= {**visible, **entries}
        for name in [name for name, value in entries.items() if self._is_no_entry(name, value)]:
            dict.pop(entries, name)

    def _defaults_before(self, entries: _CheckedEntries) -> dict[str, Any]:
        """Return what the entries meant before they existed."""
        defaults = {}
        if is_shipped(self._func.__code__.co_filename):
            own = {name: entries.replaced.get(name, value) for name, value in entries.items() if name not in self.args}
            defaults = {name: normalize_or_die(undogmatize(value)) for name, value in own.items()}
        for name, value in self._legacy.items():
            if get_by_dotted_path(entries, name, _is_given) is _is_given:
                raise ConfigError(
                    f"legacy of the scope {self._func.__name__}: got {join_paths(self._path, name)}, but there is no "
                    f"such entry; {suggestion(name, list(entries), 'name one that the scope sets')}"
                )
            set_by_dotted_path(defaults, name, value)
        return defaults

    def _is_no_entry(self, name: str, value: Any) -> bool:
        return name.startswith("__") or (name in self._imported and object_name(value) is not None)

    def _check_ingredients(self, entries: _CheckedEntries, fallback: Mapping[str, Any]) -> None:
        taken = [name for name in fallback if name != "_log" and dict.__contains__(entries, name)]
        if taken:
            raise ConfigError(
                f"a config scope of {self._path or 'the experiment'} assigns {taken[0]!r}, which is an ingredient, "
                f"whose entries are computed before: the assignment would have no effect; set {taken[0]}.ENTRY in a "
                "named config, in a config file or on the command line"
            )


def _is_given(entry: str, value: Any, arguments: list[str], preset: dict) -> bool:
    """Return whether an entry still has the value that an earlier scope gave it."""
    return entry.partition(".")[0] in arguments and get_by_dotted_path(preset, entry, _is_given) is value


def completed(config: Any, mine: Mapping[str, Any], legacy_defaults: Mapping[str, Any]) -> Any:
    """Return a recorded config with the entries that it lacks, set to what they meant before they existed.

    Defaults do not apply to a group with an entry that this run lacks, such as the options of another model.
    """
    if not isinstance(config, Mapping):
        return config
    whole = {**legacy_defaults, **config}
    for name in config.keys() & mine.keys() & legacy_defaults.keys():
        groups = value, own, default = config[name], mine[name], legacy_defaults[name]
        if all(isinstance(group, Mapping) for group in groups) and value.keys() <= own.keys():
            whole[name] = completed(value, own, default)
    return whole
