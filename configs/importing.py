"""Imports: `import_sacred`, through which every package of the lab imports Sacred 0.8.7, and a pause of the collector.

`import_sacred` does what Sacred leaves to its users:

* It gives Sacred `pkgutil.find_loader`, which is deprecated since Python 3.12 and gone in 3.14.
* It gives Sacred a small `pkg_resources`, which setuptools 82 dropped, and which takes 70 ms to import where it is.
* It lets PyYAML write a `Map` as the dict that it is.
* It lets a dict with keys that are no texts be one value of a config. Sacred joins the keys to dotted names, without 0.
* It puts off the import of pandas, which takes as long as everything else together. Sacred needs pandas only to teach
  jsonpickle about data frames and series, and that can wait until somebody else imports pandas.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import pkgutil
import re
import sys
from collections.abc import Iterator
from importlib import metadata, resources
from types import ModuleType
from typing import Any

import wrapt

from sacristan.configs.map import FrozenList, Map, MutableMap, is_group, send_maps_as_maps

__all__ = ["import_sacred", "pause_collection", "resume_collection"]


def import_sacred() -> None:
    """Import Sacred, unless it is imported already; a later import of pandas does what was put off."""
    _register_hooks()
    if "sacred" in sys.modules:
        return
    with _find_loader_given(), _pkg_resources_given(), _pandas_put_off():
        import sacred
    sacred.dependencies.PackageDependency.modname_to_dist = _PackagesOfModules()


@functools.cache
def _register_hooks() -> None:
    """Register, once, how other packages write, send and load configs, even if Sacred was imported before."""
    for module in ("sacred.utils", "sacred.initialize"):
        wrapt.register_post_import_hook(_keep_keys, module)
    wrapt.register_post_import_hook(_write_maps_as_dicts, "yaml")
    wrapt.register_post_import_hook(send_maps_as_maps, "multiprocessing.reduction")
    wrapt.register_post_import_hook(_load_pickled_maps, "torch.serialization")


@contextlib.contextmanager
def _find_loader_given() -> Iterator[None]:
    """Replace `pkgutil.find_loader`, with which Sacred looks for optional packages, by `importlib.util.find_spec`."""
    original = vars(pkgutil).get("find_loader")
    pkgutil.find_loader = importlib.util.find_spec  # type: ignore[assignment]  # Sacred compares what it returns with None
    try:
        yield
    finally:
        if original is None:
            del pkgutil.find_loader
        else:
            pkgutil.find_loader = original


class _Distribution:
    """An installed package, with what Sacred reads of a distribution of `pkg_resources`."""

    def __init__(self, found: metadata.Distribution) -> None:
        self._found = found
        # Not by `found.metadata`, which parses all of it as an e-mail.
        text = found.read_text("METADATA") or found.read_text("PKG-INFO") or ""
        fields = dict(re.findall("^(Name|Version): *(.*)$", text, re.MULTILINE))
        self.project_name, self.version = fields.get("Name", ""), fields.get("Version", "")

    @property
    def modules(self) -> list[str]:
        """Names of its modules at the top level: those that it lists, else its own."""
        return (self._found.read_text("top_level.txt") or self.project_name).split()


class _WorkingSet:
    """The installed packages, each read when it is asked for: to read all takes 40 ms beside 280 of them."""

    def __iter__(self) -> Iterator[_Distribution]:
        return map(_Distribution, metadata.distributions())

    @property
    def by_key(self) -> _WorkingSet:
        """The packages by name, for `get` alone."""
        return self

    @functools.cache  # noqa: B019 - one for the whole process
    def get(self, name: str) -> _Distribution | None:
        try:
            return _Distribution(metadata.distribution(name))
        except metadata.PackageNotFoundError:
            return None

    @functools.cached_property
    def by_module(self) -> dict[str, _Distribution]:
        return {module: each for each in reversed([*self]) for module in each.modules}


_INSTALLED = _WorkingSet()


class _PackagesOfModules(dict[str, tuple[str, str]]):
    """Name and version of the package that a module at the top level is of, looked up when asked for."""

    def __bool__(self) -> bool:
        return True  # Sacred reads all packages into an empty one

    def get(self, module: str, default: Any = None) -> Any:
        if module in sys.stdlib_module_names:
            return default
        if module not in self:
            likely = (_INSTALLED.get(name) for name in (module, "sacristan"))
            distribution = next((each for each in likely if each and module in each.modules), None)
            if distribution := distribution or _INSTALLED.by_module.get(module):
                self[module] = distribution.project_name, distribution.version
        return super().get(module, default)


class _PkgResources(ModuleType):
    """The part of `pkg_resources` that Sacred uses, by `importlib`."""

    working_set = _INSTALLED

    def resource_filename(self, package: str, name: str) -> str:
        return str(resources.files(package) / name)

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def _pkg_resources_given() -> Iterator[None]:
    """Replace `pkg_resources` by a stand-in during the block, unless it is imported already."""
    if "pkg_resources" in sys.modules:
        yield
        return
    sys.modules["pkg_resources"] = _PkgResources("pkg_resources")
    try:
        yield
    finally:
        del sys.modules["pkg_resources"]


@contextlib.contextmanager
def _pandas_put_off() -> Iterator[None]:
    """Make imports of pandas fail during the block, as if it were not installed; later ones catch up."""
    # Sacred's TinyDB observer makes classes from it at once, and must have it.
    if {"sacred", "pandas"} & sys.modules.keys() or importlib.util.find_spec("tinydb") is not None:
        yield
        return
    sys.modules["pandas"] = None  # type: ignore[assignment]  # documented: such an import raises ModuleNotFoundError
    try:
        yield
    finally:
        del sys.modules["pandas"]
    wrapt.register_post_import_hook(_catch_up, "pandas")


def _keep_keys(sacreds: ModuleType) -> None:
    vars(sacreds)["iterate_flattened"] = _iterate_flattened


def _iterate_flattened(config: dict) -> Iterator[tuple[Any, Any]]:
    """Yield the entries of a nested config, sorted, with their dotted names."""
    from sacred.utils import join_paths

    for key, value in sorted(config.items(), key=lambda entry: str(entry[0])):
        if is_group(value):
            for inner, item in _iterate_flattened(value):
                yield join_paths(key, inner), item
        else:
            yield key, value


def _write_maps_as_dicts(yaml: ModuleType) -> None:
    """Let every dumper of PyYAML write the config of a run as plain mappings and lists, which any loader reads."""
    for dumper in (yaml.Dumper, yaml.SafeDumper):
        for kind in (Map, MutableMap, FrozenList):
            represent = dumper.represent_list if kind is FrozenList else dumper.represent_dict
            yaml.add_representer(kind, represent, dumper)


def _load_pickled_maps(serialization: ModuleType) -> None:
    """Let `torch.load` read what a pickle of a config holds: calls of `dict` and `list`."""
    serialization.add_safe_globals([dict, list])


def _catch_up(pandas: ModuleType) -> None:
    """Do what sacred.optional and sacred.serializer do where pandas is installed."""
    import jsonpickle.ext.pandas
    import sacred.optional

    sacred.optional.has_pandas, sacred.optional.pandas = True, pandas
    jsonpickle.ext.pandas.register_handlers()


# ---------------------------------------------------------------------- garbage collection

# Paused while modules are loaded and a config is computed: a fifth of the time, for no garbage.

_is_paused = False


def pause_collection() -> None:
    """Stop garbage collection until `resume_collection`, unless it is switched off already."""
    global _is_paused
    if gc.isenabled():
        gc.disable()
        _is_paused = True


def resume_collection() -> None:
    """Collect garbage again, if `pause_collection` has stopped it."""
    global _is_paused
    if _is_paused:
        _is_paused = False
        gc.freeze()  # modules and config live as long as the process: later collections need not scan them
        gc.enable()
