"""Sacred through its guard, in processes of their own: without pandas, and on a Python that removed names."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# The names that Python 3.14 removed, and its start method. On 3.14 there is nothing left to take; Python 3.11 itself
# needs those of `ast`.
AS_PYTHON_3_14 = """
import ast, asyncio, importlib.abc, multiprocessing, pkgutil, pty, sqlite3, sys, urllib.parse, urllib.request
REMOVED = {
    ast: "Bytes Ellipsis NameConstant Num Str" if sys.version_info >= (3, 12) else "",
    asyncio: "AbstractChildWatcher FastChildWatcher MultiLoopChildWatcher PidfdChildWatcher SafeChildWatcher"
    " ThreadedChildWatcher get_child_watcher set_child_watcher",
    importlib.abc: "ResourceReader Traversable TraversableResources",
    pkgutil: "find_loader get_loader",
    pty: "master_open slave_open",
    sqlite3: "version version_info",
    urllib.parse: "Quoter",
    urllib.request: "FancyURLopener URLopener",
}
for module, names in REMOVED.items():
    module.__dict__.pop("__getattr__", None)
    for name in names.split():
        module.__dict__.pop(name, None)
multiprocessing.set_start_method("forkserver", force=True)
"""
FLATTEN = """
import json, pandas
import sacred.optional
from sacred.serializer import flatten, restore
frame = pandas.DataFrame({"step": [1, 2], "loss": [0.5, 0.25]})
flat = flatten({"frame": frame, "losses": frame["loss"], "at": pandas.Timestamp(0)})
assert restore(flat)["frame"].equals(frame)
del flat["frame"]["meta"]["dtypes_rle"]  # jsonpickle's names of types change from process to process
print(sacred.optional.has_pandas, sacred.optional.pandas is pandas, json.dumps(flat, sort_keys=True))
"""


PUT_OFF = """
import decimal, json, sys
import sacred
HOSTS = sacred.host_info.get_host_info()
import numpy, yaml, munch
import sacred.optional as found
from sacred.config import config_files, custom_containers
from sacred.serializer import flatten, restore

arrays = {"a": numpy.arange(3), "b": numpy.float32(0.5), "c": numpy.zeros((2, 2))}
assert (restore(flatten(arrays))["c"] == 0).all()
config = {"a": custom_containers.ReadOnlyDict(x=custom_containers.ReadOnlyList([1]))}
with open("config.yaml", "w") as stream:
    stream.write("a: {b: 1.5}")
print(json.dumps({
    "types": sorted((str(kind), str(same)) for kind, same in custom_containers.SIMPLIFY_TYPE.items()),
    "arrays": flatten(arrays),
    "yaml": [yaml.safe_dump(config), yaml.dump(config), config_files.load_config_file("config.yaml")],
    "munch": munch.Munch(a=1).toYAML(),
    "backends": __import__("jsonpickle").json._backend_names,
    "versions": [munch.__version__, __import__("jsonpickle").__version__],
    "settings": sacred.SETTINGS.toDict(),
    "rnd": int(sacred.randomness.create_rnd(1).integers(1000)),
    "has": [found.has_numpy, found.has_yaml, found.np.ndarray is numpy.ndarray, found.yaml.load is yaml.load],
    "different": [bool(custom_containers.is_different(*pair)) for pair in [(1, 1.0), ([1], [2])]],
    "mime": sacred.observers.mongo.mimetype_detector.guess_type("x.ipynb"),
    "host": HOSTS,
    "libc": found.libc.fflush(None),
    "usage": sacred.experiment.docopt("Usage: x A", ["1"])["A"],
    "version": str(found.parse_version("1.2")),
}, sort_keys=True))
"""
LIGHT = """
import sys, sacristan.experiments
print([name for name in HEAVY if name in sys.modules])
"""
HEAVY = ["cpuinfo", "importlib.metadata", "mimetypes", "numpy", "pandas", "psutil", "pydoc", "pynvml", "torch", "yaml"]


GONE = """
class Gone:
    @staticmethod
    def find_spec(name, *arguments):
        if name in ("setuptools", "pkg_resources"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Gone)
"""
PACKAGES = """
import contextlib, importlib, io, os, sys
import math, numpy, torch, yaml
assert not {"pkg_resources", "setuptools", "sacred"} & sys.modules.keys()

def found(before):
    read, write = os.pipe()
    if os.fork() == 0:
        with os.fdopen(write, "w") as stream, contextlib.redirect_stdout(stream):
            exec(before, globals())
            from sacristan import ingredients
            from sacred.dependencies import PackageDependency, get_dependencies_from_pkg
            asked = "yaml", "numpy", "torch", "sacristan", "math"
            of_modules = [PackageDependency.create(sys.modules[name]) for name in asked]
            for package in of_modules:
                package.fill_missing_version()
            print([package.to_json().lower() for package in of_modules])
            by_name = PackageDependency("numpy", None)
            by_name.fill_missing_version()
            print(by_name.version, len(get_dependencies_from_pkg({}, ".")) > 10)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        return stream.read()

expected = found("import pkg_resources")
assert "pyyaml==" in expected and expected.endswith("True\\n"), expected
print(expected.splitlines()[0])
for before in (os.environ["GONE"], ""):
    print("the same" if (there := found(before)) == expected else there)
"""


@pytest.fixture(scope="module")
def by_sacred_alone():
    return run(FLATTEN)


def run(script, **environment):
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_pandas_is_not_imported_and_its_objects_are_serialized_as_by_sacred_alone(by_sacred_alone):
    asked = "import sys, sacristan.ingredients, sacristan.experiments; print('pandas' in sys.modules)"
    assert run(asked + FLATTEN) == "False\n" + by_sacred_alone


@pytest.mark.slow
def test_pandas_that_is_imported_before_stays(by_sacred_alone):
    assert run("import pandas, sacristan.ingredients" + FLATTEN) == by_sacred_alone


@pytest.mark.slow
def test_pandas_is_imported_at_once_where_sacreds_tinydb_observer_needs_it(tmp_path):
    (tmp_path / "tinydb.py").touch()
    asked = "import sys, sacristan.ingredients; print('pandas' in sys.modules)"
    assert run(asked, PYTHONPATH=str(tmp_path)) == "True\n"


def test_arrays_are_serialized_where_numpy_is_imported_before_the_lab():
    script = "import numpy, sacristan.ingredients\nfrom sacred.serializer import flatten, restore\n"
    assert run(f"{script}print(restore(flatten(numpy.arange(3))).tolist())") == "[0, 1, 2]\n"


def test_configs_are_written_where_sacred_is_imported_before_the_lab():
    script = "import sacred, yaml, sacristan.ingredients; from sacristan.configs import Map\n"
    script += "print(yaml.safe_dump(Map({'a': 1})), end='')"
    assert run(script) == "a: 1\n"


@pytest.mark.slow
def test_python_has_the_names_that_sacred_had_before_its_import():
    script = "import pkgutil; before = dict(vars(pkgutil)); import sacristan.ingredients\n"
    script += "print(vars(pkgutil) == before)"
    assert run(script) == "True\n"
    assert run(f"{AS_PYTHON_3_14}import sacristan.ingredients; print(hasattr(pkgutil, 'find_loader'))") == "False\n"


@pytest.mark.slow
def test_sacred_is_imported_where_its_names_are_gone_whatever_comes_first():
    """Each in a fork of a process that has imported what all of them need."""
    firsts = [
        "sacristan.ingredients",
        "sacristan.experiments",
        "sacristan.observers.file.observer",
        "sacristan.observers.mongo.observer",
        "sacristan.observers.options",
    ]
    script = f"""{AS_PYTHON_3_14}
import importlib, os, numpy, pymongo, yaml
assert not {{"sacred", "pandas", "sacristan"}} & sys.modules.keys()
for first in {firsts}:
    if os.fork() == 0:
        importlib.import_module(first)
        import sacred.optional as found
        print(first, found.has_sqlalchemy, found.has_tensorflow, flush=True)
        os._exit(0)
    os.wait()
"""
    known = [importlib.util.find_spec(name) is not None for name in ("sqlalchemy", "tensorflow")]
    assert run(script).splitlines() == ["{} {} {}".format(first, *known) for first in firsts]


def test_all_of_sacred_and_what_it_needs_is_imported_where_names_are_gone():
    script = f"""{AS_PYTHON_3_14}
import sacristan.ingredients, docopt, importlib, munch, jsonpickle, sacred
needing = ("sacred.observers.sql", "sacred.observers.tinydb_hashfs", "sacred.stflow")  # packages
names = [module.name for module in pkgutil.walk_packages(sacred.__path__, "sacred.")]
for name in names:
    if not name.startswith(needing):
        importlib.import_module(name)
print(len(names) > 30)
"""
    assert run(script) == "True\n"


@pytest.mark.slow
def test_experiment_trains_where_names_are_gone_and_workers_are_not_forked(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(AS_PYTHON_3_14)
    # One loader, whose worker imports torch.
    parts = ["data.val_fraction=0", "data.test_fraction=0"]
    settings = ["data.fast", "epochs=1", "data.num_workers=1", "data.in_memory=False", "data.augment.flip=True", *parts]
    command = [sys.executable, str(ROOT / "exp.py"), "with", *settings]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "my_runs" / "1" / "run.json").read_text())["status"] == "COMPLETED"


@pytest.mark.slow
def test_sacred_finds_packages_without_setuptools_as_with_it():
    """In three forks of a process that imports torch, which takes most of the time."""
    assert run(PACKAGES, GONE=GONE).splitlines()[1:] == ["the same", "the same"]


def test_what_is_put_off_is_as_with_sacred_alone_once_it_is_there(tmp_path):
    def seen(before):
        command = [sys.executable, "-W", "ignore", "-c", before + PUT_OFF]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert seen("import sacristan.ingredients") == seen("")


def test_experiments_are_imported_without_what_their_start_may_not_need():
    assert run(f"HEAVY = {HEAVY}{LIGHT}") == "[]\n"


def test_numpy_comes_whole_to_threads_and_forks_while_it_is_asked_for():
    script = """
import os, sys, threading
from sacristan.configs.packages import numpy
assert "numpy" not in sys.modules
gate, seen = threading.Barrier(9), []
def ask():
    gate.wait()
    seen.append(int(numpy.arange(3).sum()))
threads = [threading.Thread(target=ask) for _ in range(8)]
for thread in threads: thread.start()
gate.wait()
if os.fork() == 0:
    import numpy as own
    print(own.ones(2).sum(), flush=True)
    os._exit(0)
os.wait()
for thread in threads: thread.join()
print(seen == [3] * 8, numpy.ndarray is sys.modules["numpy"].ndarray)
"""
    assert run(script) == "2.0\nTrue True\n"
