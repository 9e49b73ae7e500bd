"""Imports: `import_sacred`, through which every package of the lab imports Sacred 0.8.7, and a pause of the collector.

`import_sacred` does what Sacred leaves to its users:

* It gives Sacred `pkgutil.find_loader`, which is deprecated since Python 3.12 and gone in 3.14.
* It gives Sacred a small `pkg_resources`, which setuptools 82 dropped, and which takes 70 ms to import where it is.
* It lets PyYAML write a `Map` as the dict that it is.
* It lets a dict with keys that are no texts be one value of a config. Sacred joins the keys to dotted names, without 0.
* It puts off imports that take several times as long as Sacred itself. NumPy, PyYAML and what describes a machine are
  imported when something of them is asked for. What Sacred does with NumPy, PyYAML and pandas when it is imported, such
  as teaching jsonpickle about arrays and data frames, waits until somebody imports them.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import pkgutil
import platform
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import wrapt

from sacristan.configs.map import FrozenList, Map, MutableMap, is_group, send_maps_as_maps
from sacristan.configs.packages import Later, Package, find_package, numpy, packages


def import_sacred() -> None:
    """Import Sacred, unless it is imported already; later imports of what was put off do the rest."""
    _register_hooks()
    if "sacred" in sys.modules:
        return
    with contextlib.ExitStack() as stack:
        put_off = stack.enter_context(_packages_put_off())
        if not {"numpy", "pandas"} <= {*put_off}:
            importlib.import_module("jsonpickle.tags")  # Sacred teaches jsonpickle at once about arrays and data frames
        stack.enter_context(_function_given(pkgutil, "find_loader", lambda _, name: importlib.util.find_spec(name)))
        jsonpickle = _Jsonpickle()
        for stand_in in (jsonpickle, _PkgResources(), _Metadata(), _MimeTypes(), _Yaml(), *map(_StandIn, _LATER)):
            stack.enter_context(_module_given(stand_in))
        for name, functions in {"docopt": ["docopt"], "pickle": ["dump", "load"]}.items():
            stack.enter_context(_module_given(_StandIn(name, *functions)))
        stack.enter_context(_libc_given())
        has_munch = "munch" in sys.modules
        import sacred
    wrapt.register_post_import_hook(jsonpickle.set_options, "jsonpickle")
    for name in put_off:
        _PUT_OFF[name]()
        wrapt.register_post_import_hook(_CATCH_UP[name], name)
    if "yaml" in put_off and not has_munch:
        del sys.modules["munch"]  # Sacred's own, which knows no YAML; others get a whole one
    sacred.dependencies.PackageDependency.modname_to_dist = _PackagesOfModules()
    sacred.host_info._get_cpu_by_proc_cpuinfo = _cpu_of_linux
    sacred.host_info._os.getter_function = _names_of_system
    gpus = sacred.host_info._gpus
    gpus.getter_function = functools.partial(_gpus_if_any, gpus.getter_function)


@functools.cache
def _register_hooks() -> None:
    """Register, once, how other packages write, send and load configs, even if Sacred was imported before."""
    for module in ("sacred.utils", "sacred.initialize"):
        wrapt.register_post_import_hook(_keep_keys, module)
    wrapt.register_post_import_hook(_write_maps_as_dicts, "yaml")
    wrapt.register_post_import_hook(send_maps_as_maps, "multiprocessing.reduction")
    wrapt.register_post_import_hook(_load_pickled_maps, "torch.serialization")


# ---------------------------------------------------------------------- what Sacred gets while it is imported

# Modules of which Sacred needs nothing while it is imported.
_LATER = ("cpuinfo", "jsonpickle.tags", "packaging.version", "pydoc", "xml.etree.ElementTree")


@contextlib.contextmanager
def _function_given(module: ModuleType, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Replace a function of a module for Sacred alone; `function` gets the original first, None if there is none."""
    original = vars(module).get(name)

    def given(*args: Any) -> Any:
        if original is not None and not str(sys._getframe(1).f_globals.get("__name__")).startswith("sacred."):
            return original(*args)
        return function(original, *args)

    setattr(module, name, given)
    try:
        yield
    finally:
        if original is None:
            delattr(module, name)
        else:
            setattr(module, name, original)


@contextlib.contextmanager
def _module_given(stand_in: _StandIn) -> Iterator[None]:
    """Let imports find a stand-in, unless its module is imported already."""
    name = stand_in.__name__
    if name in sys.modules:
        yield
        return
    sys.modules[name] = stand_in
    try:
        yield
    finally:
        if sys.modules.get(name) is stand_in:
            del sys.modules[name]


class _StandIn(Later):
    """Stands in for a module in `sys.modules`; `functions` of it import it when they are called, all else at once."""

    def __init__(self, name: str, *functions: str) -> None:
        super().__init__(name)
        self._thread = threading.get_ident()
        for function in functions:
            setattr(self, function, functools.partial(self._call, function))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and self._thread == threading.get_ident():  # the import asks whether it is a package
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return super().__getattr__(name)

    def _call(self, function: str, *args: Any, **options: Any) -> Any:
        return self.__getattr__(function)(*args, **options)


class _PkgResources(_StandIn):
    """The part of `pkg_resources` that Sacred uses."""

    def __init__(self) -> None:
        super().__init__("pkg_resources")
        self.working_set = _INSTALLED

    def resource_filename(self, package: str, name: str) -> str:
        return str(Path(str(sys.modules[package].__file__)).parent / name)


class _Metadata(_StandIn):
    """The part of `importlib.metadata` by which Sacred's dependencies find out their own versions."""

    def __init__(self) -> None:
        super().__init__("importlib.metadata")

    def version(self, name: str) -> str:
        package = find_package(name)
        return super().__getattr__("version")(name) if package is None else package.version


class _Yaml(_StandIn):
    """The package `yaml`, which munch looks into in vain, and jsonpickle calls if JSON fails it."""

    YAMLError = Exception

    def __init__(self) -> None:
        super().__init__("yaml", "dump", "safe_load")


class _Jsonpickle(_StandIn):
    """The package `jsonpickle`, with the options that Sacred sets."""

    def __init__(self) -> None:
        super().__init__("jsonpickle")
        self._options: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        with _module_given(_Metadata()), _module_given(_Yaml()):
            return super().__getattr__(name)

    def set_encoder_options(self, *args: Any, **options: Any) -> None:
        self._options.append((args, options))

    def set_options(self, jsonpickle: ModuleType) -> None:
        """Set the options, once it is imported."""
        for args, options in self._options:
            jsonpickle.set_encoder_options(*args, **options)


class _MimeTypes(_StandIn):
    """The module `mimetypes`, of which Sacred makes an object that reads a long file."""

    def __init__(self) -> None:
        super().__init__("mimetypes")

    class MimeTypes:
        """Makes that object when it is first used."""

        def __init__(self, **options: Any) -> None:
            self._options = options

        def __getattr__(self, name: str) -> Any:
            import mimetypes

            if "_made" not in vars(self):
                self._made = mimetypes.MimeTypes(**self._options)
            return getattr(self._made, name)


@contextlib.contextmanager
def _libc_given() -> Iterator[None]:
    """Let Sacred flush C's output by the library that Python has loaded, instead of asking a process where it is."""
    if sys.platform == "win32":
        yield
        return
    import ctypes.util

    with _function_given(ctypes.util, "find_library", lambda *_: None):
        yield


@contextlib.contextmanager
def _packages_put_off() -> Iterator[list[str]]:
    """Let Sacred find none of the packages that it would import without need; yield their names."""
    names = [name for name in _PUT_OFF if name not in sys.modules]
    # Sacred's TinyDB observer makes classes from pandas at once, and must have it.
    if importlib.util.find_spec("tinydb") is not None:
        names = [name for name in names if name != "pandas"]

    def import_module(original: Callable[[str], ModuleType], name: str) -> ModuleType:
        if name in names:
            raise ModuleNotFoundError(name)
        return original(name)

    with _function_given(importlib, "import_module", import_module):
        yield names


class _WorkingSet:
    """The installed packages, each read when it is asked for: to read all takes 40 ms beside 280 of them."""

    def __iter__(self) -> Iterator[_Distribution]:
        return map(_Distribution, packages())

    @property
    def by_key(self) -> _WorkingSet:
        """The packages by name, for `get` alone."""
        return self

    @functools.cache  # noqa: B019 - one for the whole process
    def get(self, name: str) -> _Distribution | None:
        found = find_package(name)
        return None if found is None else _Distribution(found)

    @functools.cached_property
    def by_module(self) -> dict[str, _Distribution]:
        return {module: each for each in reversed([*self]) for module in each.modules}


class _Distribution:
    """An installed package, with what Sacred reads of a distribution of `pkg_resources`."""

    def __init__(self, found: Package) -> None:
        self._found, self.project_name, self.version = found, found.name, found.version

    @property
    def modules(self) -> list[str]:
        return self._found.modules


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


def _cpu_of_linux() -> str | None:
    """Return the name of the CPU as Sacred's function does, but start no process."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.lstrip().startswith("model name")), None)


def _names_of_system() -> list[str]:
    """Return what Sacred's function does, but start no process for the processor's name, which it leaves out."""
    uname = vars(platform.uname())
    has_processor = "processor" in uname
    uname.setdefault("processor", "")
    try:
        return [platform.system(), platform.platform()]
    finally:
        if not has_processor:
            del uname["processor"]


def _gpus_if_any(gpus: Callable[[], Any]) -> Any:
    """Return what Sacred's function does, but start no process where `nvidia-smi` is not installed."""
    import sacred

    if sacred.SETTINGS.HOST_INFO.INCLUDE_GPU_INFO and shutil.which("nvidia-smi") is None:
        raise sacred.host_info.IgnoreHostInfo
    return gpus()


# ---------------------------------------------------------------------- what is put off


def _have_numpy() -> None:
    import sacred.optional

    sacred.optional.has_numpy, sacred.optional.np = True, numpy


def _have_yaml() -> None:
    import sacred.optional
    from sacred.config import config_files

    yaml = Later("yaml")
    sacred.optional.has_yaml, sacred.optional.yaml = True, yaml
    handler = config_files.Handler(
        lambda stream: yaml.load(stream, Loader=yaml.FullLoader), lambda config, stream: yaml.dump(config, stream), ""
    )
    config_files.HANDLER_BY_EXT.update(dict.fromkeys(config_files.yaml_extensions, handler))


# What follows the import of Sacred without a package; it has done without pandas.
_PUT_OFF: dict[str, Callable[[], None]] = {"numpy": _have_numpy, "yaml": _have_yaml, "pandas": lambda: None}


def _know_numpy(numpy: ModuleType) -> None:
    """Do what sacred.serializer and sacred.config.custom_containers do where NumPy is installed."""
    from sacred.config.custom_containers import SIMPLIFY_TYPE

    _register_handlers("numpy")
    names = {float: "float16 float32 float64 float128", int: "int8 int16 int32 int64 uint uint8 uint16 uint32 uint64"}
    for kind, same in names.items():
        SIMPLIFY_TYPE.update((getattr(numpy, name), kind) for name in same.split() if hasattr(numpy, name))
    SIMPLIFY_TYPE[numpy.bool_] = bool


def _know_yaml(yaml: ModuleType) -> None:
    """Do what sacred.config.custom_containers does where PyYAML is installed."""
    from sacred.config.custom_containers import ReadOnlyDict, ReadOnlyList

    for dumper in (yaml.Dumper, yaml.SafeDumper):
        dumper.add_representer(ReadOnlyDict, lambda dumper, data: dumper.represent_dict(data))
        dumper.add_representer(ReadOnlyList, lambda dumper, data: dumper.represent_list(data))


def _know_pandas(pandas: ModuleType) -> None:
    """Do what sacred.optional and sacred.serializer do where pandas is installed."""
    import sacred.optional

    sacred.optional.has_pandas, sacred.optional.pandas = True, pandas
    _register_handlers("pandas")


def _register_handlers(package: str) -> None:
    """Teach jsonpickle the types of a package, once it is imported."""

    def register(_: ModuleType) -> None:
        importlib.import_module(f"jsonpickle.ext.{package}").register_handlers()

    wrapt.register_post_import_hook(register, "jsonpickle")


_CATCH_UP = {"numpy": _know_numpy, "yaml": _know_yaml, "pandas": _know_pandas}


# ---------------------------------------------------------------------- configs in other packages


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
