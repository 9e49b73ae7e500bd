"""`sacristan run`: a script behaves as under Python itself, and its record has what it did."""

from __future__ import annotations

import contextlib
import json
import os
import py_compile
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

import sacristan.__main__
from sacristan.runs import open_store
from tests.processes import PIPE, run

# Scripts that print what they see, and end in some way.
SCRIPTS = {
    "what it is": """
        '''Its text.'''
        import os, sys
        print(__name__, __file__, __doc__, __spec__, __package__, __cached__, type(__loader__).__name__)
        print(sys.argv, sys.path[0], sys.orig_argv[1:], os.getcwd(), sys.modules["__main__"].__dict__ is globals())
        print(sorted(globals()))
    """,
    "stdin": "import sys; print(input('name? '), sys.stdin.read(), sys.stdin.isatty())",
    "exits with a number": "import sys; sys.exit(3)",
    "exits with a text": "import sys; sys.exit('text')",
    "exits by raise": "raise SystemExit(4)",
    "fails": "def f():\\n    return 1 / 0\\nprint('before')\\nf()",
    "fails from a cause": "try:\\n    1 / 0\\nexcept ZeroDivisionError as e:\\n    raise KeyError('k') from e",
    "is no syntax": "print('never')\\nx = = 3",
    "leaves at once": "import os; print('out', flush=True); os._exit(5)",
    "crashes": "import ctypes; print('out', flush=True); ctypes.string_at(0)",
    "is interrupted": "print('out', flush=True); raise KeyboardInterrupt",
    "is terminated": "import os, signal; print('out', flush=True); os.kill(os.getpid(), 15); signal.pause()",
    "gets Ctrl-C": "import os, signal; print('out', flush=True); os.kill(os.getpid(), 2); signal.pause()",
    "handles signals": """
        import os, signal, sys
        signal.signal(signal.SIGTERM, lambda number, frame: (print("handled", number), sys.exit(7)))
        os.kill(os.getpid(), signal.SIGTERM)
    """,
    "order at exit": """
        import atexit, threading, time
        atexit.register(print, "first registered")
        atexit.register(print, "second registered")
        threading.Thread(target=lambda: (threading.main_thread().join(), print("thread"))).start()
        print("end")
    """,
    "own excepthook": """
        import sys
        sys.excepthook = lambda kind, error, trace: print("hook", kind.__name__, error, trace.tb_lineno)
        raise ValueError("x")
    """,
    "pickles": """
        import pickle
        class Point:
            x = 3
        print(pickle.loads(pickle.dumps(Point())).x, Point.__module__)
    """,
    "spawns": """
        import multiprocessing
        class Net:
            w = 4
        def work(net):
            return net.w, __name__
        if __name__ == "__main__":
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(work, [Net()]))
    """,
    "forks": """
        import os, sys
        pid = os.fork()
        if pid == 0:
            print("child", flush=True)
            sys.exit(6)
        print("parent", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """,
    "changes folder": "import os; os.makedirs('deep'); os.chdir('deep'); open('f', 'w').close(); print(os.listdir())",
    "replaces stdout": """
        import io, sys
        sys.stdout = io.StringIO()
        print("hidden")
        text, sys.stdout = sys.stdout.getvalue(), sys.__stdout__
        print("shown", text)
    """,
    "logs": "import logging; logging.basicConfig(level=10); logging.info('x'); print(len(logging.root.handlers))",
    "names threads": "import threading; print(threading.Thread(target=print).name)",
    "warns": "import warnings; warnings.warn('old', stacklevel=1); print(len(warnings.filters) > 0)",
}


def as_text(script):
    lines = script.replace("\\n", "\n").strip("\n").split("\n")
    indent = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[indent:] for line in lines)


def started(words, folder, env=None, **options):
    folder.mkdir(exist_ok=True)
    (folder / "typed.txt").write_text("ann\nrest")
    with (folder / "typed.txt").open() as typed:
        command = [sys.executable, *words]
        done = run(command, cwd=folder, stdin=typed, stdout=PIPE, stderr=PIPE, text=True, env=env, **options)
    own = [line for line in done.stderr.splitlines() if not line.startswith("sacristan: ")]
    return done.returncode, done.stdout.replace(str(folder), "HERE"), "\n".join(own).replace(str(folder), "HERE")


def only_run(folder):
    with open_store(folder / "my_runs") as store:
        [found] = store.find()
        return found


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", [*SCRIPTS])
def test_script_behaves_as_under_python(tmp_path, name):
    for folder in ("plain", "run"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_text(as_text(SCRIPTS[name]))
    options = {"cold": name == "what it is"}
    plain = started(["train.py", "--lr", "3"], tmp_path / "plain", **options)
    under = started(["-m", "sacristan", "run", "train.py", "--lr", "3"], tmp_path / "run", **options)
    assert under == plain
    found = only_run(tmp_path / "run")
    statuses = {0: "COMPLETED", -signal.SIGSEGV: "DEAD"}
    interrupted = plain[0] in (-signal.SIGINT, -signal.SIGTERM)
    assert found.status == statuses.get(plain[0], "INTERRUPTED" if interrupted else "FAILED")
    assert found.get("meta.script") == {
        "kind": "file", "program": "train.py", "args": ["--lr", "3"], "captured": True, "options": [],
        "reads_pipe": True,
    }  # fmt: skip
    assert found.config == {"args": ["--lr", "3"]}


SEES = """
import os, sys
print(__name__, __file__, __package__, globals().get("__cached__"), type(__loader__).__name__)
spec = __spec__
print(getattr(__loader__, "path", None), spec and (spec.name, spec.origin, spec.cached, spec.parent))
print(sys.argv, sys.orig_argv[1:], sys.path[0], os.getcwd(), sorted(globals()))
"""
WAYS_TO_NAME = {
    "./train.py": "train",
    ".//deep/../train.py": "train",
    "HERE/./train.py": "train",
    "link.py": "link",
    "linked/train.py": "train",
    "script": "script",
    "train.pyc": "train",
    "-m train": "train",
    "-m pkg": "pkg",
    "-m pkg.mod": "mod",
    "pkg": "pkg",
    "./pkg/": "pkg",
    "./code.zip": "code",
    "compiled": "compiled",
}


@pytest.fixture(scope="module")
def named_in_all_ways(tmp_path_factory):
    folder = tmp_path_factory.mktemp("named")
    for name in ("train.py", "script", "deep/train.py", "pkg/__main__.py", "pkg/mod.py", "pkg/__init__.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("" if name.endswith("__init__.py") else SEES)
    for name in ("train.pyc", "compiled/__main__.pyc"):
        py_compile.compile(str(folder / "train.py"), str(folder / name), doraise=True)
    (folder / "link.py").symlink_to("deep/train.py")
    (folder / "linked").symlink_to("deep")
    with zipfile.ZipFile(folder / "code.zip", "w") as archive:
        archive.writestr("__main__.py", SEES)
    return folder


@pytest.mark.sampled(5)
@pytest.mark.parametrize("way", [*WAYS_TO_NAME])
def test_script_sees_itself_as_under_python_in_whatever_way_it_is_named(named_in_all_ways, way):
    words = [*way.replace("HERE", str(named_in_all_ways)).split(), "--lr", "3"]
    plain = started(words, named_in_all_ways, cold=True)
    assert started(["-m", "sacristan", "run", *words], named_in_all_ways, cold=True) == plain
    assert plain[0] == 0, plain
    with open_store(named_in_all_ways / "my_runs") as store:
        newest = store.find(limit=1)[0]
    assert (newest.name, newest.status) == (WAYS_TO_NAME[way], "COMPLETED")


def test_module_behaves_as_under_python(tmp_path):
    text = "import sys, os\nprint(__name__, __spec__.name, __file__, __package__, sys.argv, sys.path[0])\n1 / 0\n"
    for folder in ("plain", "run"):
        package = tmp_path / folder / "pkg"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("import sys\nprint('package', sys.argv)\n")
        (package / "train.py").write_text(text)
        (package / "__main__.py").write_text(text)
    for module in ("pkg.train", "pkg"):
        plain = started(["-m", module, "x"], tmp_path / "plain", cold=True)
        words = ["-m", "sacristan", "run", "--name", "mine", "-m", module, "x"]
        under = started(words, tmp_path / "run", cold=True)
        assert under == plain
    with open_store(tmp_path / "run" / "my_runs") as store:
        found_words = [run["command_line"] for run in store.find(sort="id")]
        assert found_words == [["-m", "pkg.train", "x"], ["-m", "pkg", "x"]]
        for found in store.find():
            assert (found.get("experiment.name"), found.status) == ("mine", "FAILED")
            assert "pkg/train.py" in str(found.get("experiment.sources")) or "pkg/__main__.py" in str(
                found.get("experiment.sources")
            )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian.py"], "trian.py: No such file or directory; did you mean train.py?"),
        (["--set", "LR", "folder"], "--set names constants of a script; got folder, which is a folder or an archive"),
        ([], "got no script; write sacristan run train.py"),
        (
            ["python", "train.py"],
            "python: No such file or directory; leave it out: sacristan run train.py",
        ),
        (["python3", "-m", "pkg"], "python3: No such file or directory; leave it out: sacristan run -m pkg"),
        (["-", "x"], "-: No such file or directory; code from the standard input is not recorded; put it into a file"),
        (["--set", "LR", "train.pyc"], "--set names constants of a script; got train.pyc, which is compiled"),
        (["bash", "train.sh"], "bash: No such file or directory; for a program, write sacristan run -- bash ..."),
        (["-m", "no.such"], "-m no.such: there is no such module"),
        (["--set", "EPOCH", "train.py"], "--set EPOCH: train.py sets no such name at its top; did you mean EPOCHS?"),
    ],
)
def test_wrong_words_are_one_sentence(tmp_path, words, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / "data.bin").write_bytes(b"\0\1\2")
    (tmp_path / "train.py").write_text("EPOCHS = 3\n")
    py_compile.compile(str(tmp_path / "train.py"), str(tmp_path / "train.pyc"))
    command = [sys.executable, "-m", "sacristan", "run", *words]
    done = run(command, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"sacristan: error: {message}")
    assert not (tmp_path / "my_runs").exists()


@pytest.mark.parametrize("words", [["src/train.py"], ["--", "bash", "train.sh"]], ids=["script", "command"])
def test_modules_of_the_working_folder_take_no_place_of_those_of_python_or_the_lab(tmp_path, words):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("import random; print(random.randint(3, 3))")
    (tmp_path / "train.sh").write_text(f"{sys.executable} src/train.py")
    for name in ("random.py", "wrapt.py"):
        (tmp_path / name).write_text("")
    program = [sacristan.__main__.__file__] if words[0] == "--" else ["-m", "sacristan"]
    command = [sys.executable, *program, "run", *words]
    done = run(command, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True, cold=True)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    assert only_run(tmp_path).status == "COMPLETED"


def test_store_that_is_none_is_named_by_its_variable(tmp_path):
    (tmp_path / "train.py").write_text("print('never')")
    command = [sys.executable, "-m", "sacristan", "run", "train.py"]
    env = os.environ | {"SACRISTAN_STORE": "mongodb://"}
    done = run(command, cwd=tmp_path, env=env, stdout=PIPE, stderr=PIPE, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("sacristan: error: SACRISTAN_STORE: got 'mongodb://'")


def test_library_that_nobody_knows_is_rejected(tmp_path):
    (tmp_path / "train.py").write_text("")
    command = [sys.executable, "-m", "sacristan", "run", "--also", "wndb", "train.py"]
    done = run(command, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True)
    assert (done.returncode, (tmp_path / "my_runs").exists()) == (2, False)
    assert "--also wndb: there is no such library; did you mean wandb?" in done.stderr


UNRECORDED = """
import sys
import wandb

wandb.init(project="digits")
wandb.log({"loss": 1.0})
sys.exit(3)
"""


@pytest.mark.parametrize("command", [["train.py"], ["--", "bash", "train.sh"]], ids=["script", "command"])
def test_nothing_is_recorded_where_the_environment_says_so(tmp_path, command):
    (tmp_path / "train.py").write_text(UNRECORDED if command == ["train.py"] else "raise SystemExit(3)")
    (tmp_path / "train.sh").write_text(f"{sys.executable} train.py")
    code, _, err = started(
        ["-m", "sacristan", "run", *command], tmp_path, env={**os.environ, "SACRISTAN_MODE": "disabled"}
    )
    assert (code, err) == (3, "")
    assert not (tmp_path / "my_runs").exists()


# Files that Python runs, or rejects in words of its own.
FILES = {
    "null bytes": b"x = 1\0\nprint(x)\n",
    "random bytes": random.Random(0).randbytes(400),
    "bytes of no encoding": b"print(1)\n\n# \xff\n",
    "UTF-16": "print(1)".encode("utf-16"),
    "UTF-8 with a mark": b"\xef\xbb\xbfprint('\xc3\xa9')\n",
    "a mark and another encoding": b"\xef\xbb\xbf# coding: latin-1\nprint(1)\n",
    "an encoding in the first line": b"# -*- coding: latin-1 -*-\nprint('\xe9')\n",
    "an encoding in the second line": b"#!/usr/bin/env python\n# vim: set fileencoding=cp1252 :\nprint('\x80')\n",
    "an unknown encoding": b"# coding: klingon\nprint(1)\n",
    "bytes that its encoding has not": b"# coding: ascii\nprint('\xe9')\n",
    "nothing": b"",
    "old ends of lines": b"print(1)\rprint(2)\r",
    "a program": Path("/bin/true").read_bytes(),
    "an open bracket": b"print(\n",
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [*FILES])
def test_file_of_any_bytes_ends_as_under_python(tmp_path, name):
    for folder in ("plain", "run"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.py").write_bytes(FILES[name])
    code, out, err = started(["train.py"], tmp_path / "plain", cold=True)
    under = started(["-m", "sacristan", "run", "train.py"], tmp_path / "run")
    assert (under[:2], under[2].splitlines()[-1:]) == ((code, out), err.splitlines()[-1:])
    assert only_run(tmp_path / "run").status == ("FAILED" if code else "COMPLETED")


def test_file_that_is_no_script_by_its_name_and_its_bytes_is_one_sentence(tmp_path):
    (tmp_path / "data.bin").write_bytes(b"\0\1\2")
    plain = started(["data.bin"], tmp_path)
    command = [sys.executable, "-m", "sacristan", "run", "data.bin"]
    done = run(command, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True)
    assert done.returncode == plain[0] == 1
    expected = "data.bin: this is no Python script; for another program, write sacristan run -- data.bin"
    assert done.stderr == f"sacristan: error: {expected}\n"
    assert not (tmp_path / "my_runs").exists()
    (tmp_path / "train.pyc").write_bytes(b"old")
    plain = started(["train.pyc"], tmp_path)
    done = run([*command[:-1], "train.pyc"], cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True)
    assert done.returncode == plain[0] == 1
    assert re.fullmatch(
        r"sacristan: error: train.pyc: this is no bytecode of Python 3\.\d+; run its source\n", done.stderr
    )


def test_folder_and_archive_with_a_main_behave_as_under_python(tmp_path):
    text = (
        "import sys\nprint(__name__, __file__, __package__, __spec__.name, sys.argv, sys.orig_argv[1:], sys.path[0])\n"
    )
    for folder in ("plain", "run"):
        package = tmp_path / folder / "pkg"
        package.mkdir(parents=True)
        (package / "__main__.py").write_text(text + "1 / 0\n")
        with zipfile.ZipFile(tmp_path / folder / "code.zip", "w") as archive:
            archive.writestr("__main__.py", text + "sys.exit(3)\n")
    for name in ("pkg", "code.zip"):
        plain = started([name, "x"], tmp_path / "plain", cold=True)
        under = started(["-m", "sacristan", "run", name, "x"], tmp_path / "run", cold=True)
        assert under == plain
    with open_store(tmp_path / "run" / "my_runs") as store:
        found = [(run.get("experiment.name"), run.status, run.get("meta.script.program")) for run in store.find()]
    assert sorted(found) == [("code", "FAILED", "code.zip"), ("pkg", "FAILED", "pkg")]


def test_folder_without_a_main_is_one_sentence_and_the_exit_code_of_python(tmp_path):
    (tmp_path / "folder").mkdir()
    plain = started(["folder"], tmp_path)
    command = [sys.executable, "-m", "sacristan", "run", "folder"]
    done = run(command, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True)
    assert done.returncode == plain[0] == 1
    assert done.stderr.startswith("sacristan: error: folder: there is no __main__.py in it; name a script")
    assert not (tmp_path / "my_runs").exists()


MULTIRUN = """
import hydra
import sacristan

@hydra.main(version_base=None, config_path=".", config_name="conf")
def main(config):
    sacristan.init().log({"loss": config.lr})
    if config.lr > 1:
        raise ValueError("too high")

if __name__ == "__main__":
    main()
"""


def test_each_job_of_a_multirun_of_hydra_is_a_run(tmp_path):
    pytest.importorskip("hydra")
    (tmp_path / "conf.yaml").write_text("lr: 0.1\nseed: 0\n")
    (tmp_path / "train.py").write_text(MULTIRUN)
    plain = started(["train.py", "-m", "lr=0.5,2.0"], tmp_path)
    under = started(["-m", "sacristan", "run", "train.py", "-m", "lr=0.5,2.0"], tmp_path)
    assert under[0] == plain[0] == 1
    with open_store(tmp_path / "my_runs") as store:
        first, second = sorted(
            (run for run in store.find("meta.script.captured=True")), key=lambda run: run.config["lr"]
        )
    assert (first.config, first.status) == ({"lr": 0.5, "seed": 0}, "COMPLETED")
    assert (second.config, second.status) == ({"lr": 2.0, "seed": 0}, "FAILED")
    assert [run.get("meta.script.args") for run in (first, second)] == [["lr=0.5"], ["lr=2.0"]]
    assert [run.metric("loss").values.tolist() for run in (first, second)] == [[0.5], [2.0]]


LOGS_IN_THREADS = """
import threading
import wandb

run = wandb.init(config={"lr": 0.1})
together = threading.Barrier(8)

def work(number):
    together.wait()
    run.log({f"loss/{number}": number})

threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def test_library_is_named_once_and_settings_stand_for_the_words(tmp_path):
    (tmp_path / "train.py").write_text(LOGS_IN_THREADS)
    command = [sys.executable, "-m", "sacristan", "run", "train.py", "--lr=0.1"]
    done = run(command, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True)
    assert done.returncode == 0
    assert done.stderr.count("sacristan: recording what the script logs with wandb") == 1
    assert only_run(tmp_path).config == {"lr": 0.1}


ODD_VALUES = """
import math
import sacristan

class Odd:
    def __float__(self):
        raise RuntimeError("no number")

run = sacristan.init()
for step in range(3):
    run.log({"text": "a", "nan": math.nan, "inf": -math.inf, "none": None, "complex": 1j, "list": [1, 2], "odd": Odd()})
    run.log({"huge": 10**400, "bool": True})
"""


def test_values_that_are_no_numbers_are_kept_or_named_once(tmp_path):
    (tmp_path / "train.py").write_text(ODD_VALUES)
    command = [sys.executable, "-m", "sacristan", "run", "train.py"]
    done = run(command, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True)
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert len(lines) == 3, done.stderr
    assert [sum(word in line for line in lines) for word in ("odd: ", "'huge'", "Recorded in")] == [1] * 3
    found = only_run(tmp_path)
    assert found.status == "COMPLETED"
    assert [len(found.metric(name)) for name in ("nan", "inf", "bool")] == [3, 3, 3]


def test_script_that_runs_another_one_has_a_run_of_its_own(tmp_path):
    (tmp_path / "inner.py").write_text("print('inner')\nraise SystemExit(5)\n")
    words = [sys.executable, "-m", "sacristan", "run", "inner.py"]
    (tmp_path / "outer.py").write_text(f"import subprocess, sys\nsys.exit(subprocess.call({words!r}))\n")
    code, shown, _ = started(["-m", "sacristan", "run", "outer.py"], tmp_path)
    assert (code, shown) == (5, "inner\n")
    with open_store(tmp_path / "my_runs") as store:
        assert sorted((run.get("experiment.name"), run.status, run.output) for run in store.find())[0] == (
            "inner", "FAILED", "inner\n",
        )  # fmt: skip
        assert len(store.find()) == 2


def test_folder_that_cannot_be_written_costs_no_run(small_disk):
    (small_disk / "train.py").write_text("print('hi')\n")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    command = [sys.executable, "-m", "sacristan", "run", "train.py"]
    done = run(command, cwd=small_disk, stdout=PIPE, stderr=PIPE, text=True)
    assert (done.returncode, done.stdout) == (0, "hi\n")
    where = re.fullmatch(
        r"sacristan: my_runs cannot be written \(Read-only file system\); this run is recorded in (.*)/1\n"
        r"sacristan: Recorded in (.*)/1\n", done.stderr,
    )  # fmt: skip
    assert where is not None, done.stderr
    assert where[1] == where[2]
    with open_store(where[1]) as store:
        assert store.get("1").status == "COMPLETED"
    shutil.rmtree(where[1])


def test_script_on_a_disk_that_is_full_from_the_start_ends_as_ever(small_disk):
    (small_disk / "train.py").write_text("import sacristan, sys\nsacristan.init().log({'loss': 1})\nsys.exit(3)\n")
    with contextlib.suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as stream:
        while stream.write(bytes(4096)):
            pass
    for before in (["-m", "sacristan", "run"], []):
        done = run([sys.executable, *before, "train.py"], cwd=small_disk, stdout=PIPE, stderr=PIPE, text=True)
        assert done.returncode == 3
        lines = done.stderr.splitlines()
        assert all(line.startswith("sacristan: ") for line in lines), done.stderr
        assert re.search(r"Recorded in my_runs/\d, but not whole: it lacks .* reads as DEAD", lines[-1])


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("variables", [{}, {"HOME": "/root"}, {"HOME": "/nowhere", "TMPDIR": "/nowhere"}])
@pytest.mark.parametrize("before", [["-m", "sacristan", "run"], []], ids=["captured", "three lines"])
def test_script_in_a_folder_that_another_user_may_not_write_is_recorded_elsewhere(before, variables):
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "-i", f"PATH={os.environ['PATH']}"]
    nobody += [f"{name}={value}" for name, value in variables.items()]
    if run([*nobody, sys.executable, "-c", "import sacristan"], cwd="/", capture_output=True).returncode:
        pytest.skip("another user may not read the lab")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        Path(folder, "train.py").write_text("import sacristan, sys\nsacristan.init().log({'loss': 1})\nsys.exit(3)\n")
        done = run([*nobody, sys.executable, *before, "train.py"], cwd=folder, stdout=PIPE, stderr=PIPE, text=True)
        assert done.returncode == 3
        assert [path.name for path in Path(folder).iterdir()] == ["train.py"]
    where = re.fullmatch(
        r"sacristan: my_runs cannot be written \(Permission denied\); this run is recorded in (.*)/1\n"
        r"sacristan: Recorded in (.*)/1\n", done.stderr,
    )  # fmt: skip
    assert where is not None, done.stderr
    with open_store(where[1]) as store:
        assert store.get("1").status == "FAILED"
    shutil.rmtree(where[1])


def test_script_that_replaces_its_process_runs_on_and_says_that_its_record_ends(tmp_path):
    text = "import os, sys\nif len(sys.argv) == 1:\n    os.execlp('env', 'env', sys.executable, *sys.argv, 'again')\n"
    (tmp_path / "train.py").write_text(text + "print(sys.argv)\nsys.exit(3)\n")
    command = [sys.executable, "-m", "sacristan", "run", "train.py"]
    done = run(command, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True, cold=True)
    assert (done.returncode, done.stdout) == (3, "['train.py', 'again']\n")
    assert re.fullmatch(r"sacristan: the script replaces its process by /.*/env \(os.exec\): its .*\n", done.stderr)
    assert only_run(tmp_path).status == "DEAD"


def test_constants_and_kept_files_are_in_the_record(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old.pt").write_text("old")
    os.utime(tmp_path / "out" / "old.pt", (0, 0))
    (tmp_path / "train.py").write_text(
        "LR = 0.1\nWIDTH = 4\nDEPTH = WIDTH * 2\nexec('WIDTH = 5')\nopen('out/new.pt', 'w').write('weights')\n"
    )
    words = ["-m", "sacristan", "run", "--set", "WIDTH", "--set=DEPTH", "--keep", "out/*.pt", "train.py"]
    assert started(words, tmp_path)[0] == 0
    found = only_run(tmp_path)
    assert found.config == {"WIDTH": 5, "DEPTH": 8}
    assert json.loads((tmp_path / "my_runs" / "1" / "run.json").read_bytes())["artifacts"] == ["out/new.pt"]
    assert (tmp_path / "my_runs" / "1" / "out" / "new.pt").read_text() == "weights"
    assert (tmp_path / "out" / "new.pt").read_text() == "weights"


def test_later_ranks_of_a_launch_run_without_a_record(tmp_path):
    (tmp_path / "train.py").write_text("import sys; print(sys.argv); sys.exit(3)")
    words = ["-m", "sacristan", "run", "train.py", "x"]
    assert started(words, tmp_path, {"RANK": "1", "WORLD_SIZE": "2"})[:2] == (3, "['train.py', 'x']\n")
    assert not (tmp_path / "my_runs").exists()
    rank = {**os.environ, "RANK": "1", "WORLD_SIZE": "2"}
    words_of_command = ["-m", "sacristan", "run", "--", sys.executable, "train.py", "x"]
    done = run([sys.executable, *words_of_command], cwd=tmp_path, env=rank, stdout=PIPE, stderr=PIPE, text=True)
    assert (done.returncode, done.stderr) == (3, "")
    assert started(words, tmp_path, {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"})[0] == 3
    assert not (tmp_path / "my_runs").exists()


@pytest.mark.parametrize("variables", [{"RANK": "abc"}, {"RANK": "8"}, {"RANK": "abc", "WORLD_SIZE": "2"}])
def test_rank_that_is_a_variable_of_the_script_is_none_of_a_launch(tmp_path, variables):
    (tmp_path / "train.py").write_text("import sacristan; sacristan.init().log({'loss': 1})")
    for words in (["-m", "sacristan", "run", "train.py"], ["train.py"]):
        assert started(words, tmp_path, {**os.environ, **variables})[0] == 0
    with open_store(tmp_path / "my_runs") as store:
        assert [run.status for run in store.find()] == ["COMPLETED"] * 2


FULL_DISK = """
import os, resource, sys
import sacristan
run = sacristan.init()
run.log({"loss": 1}, step=0)
run.lab_run.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), -1))
for step in range(int(sys.argv[2])):
    run.log({"loss": step}, step=step)
sys.exit(int(sys.argv[3]))
"""


@pytest.mark.parametrize("started_by", ["itself", "sacristan run"])
@pytest.mark.parametrize(
    ("limit", "points", "code", "status", "lacks"),
    [
        (100_000, 140_000, 0, "COMPLETED_WITH_LOSS", r"it lacks \d+ points"),
        (100_000, 140_000, 3, "FAILED", r"it lacks \d+ points"),
        (0, 1, 0, "DEAD", r"it lacks \d+ points and its end, so that it reads as DEAD"),
    ],
)
def test_script_on_a_full_disk_ends_as_ever_and_its_last_line_says_what_is_lost(
    tmp_path, started_by, limit, points, code, status, lacks
):
    (tmp_path / "train.py").write_text(FULL_DISK)
    words = ["-m", "sacristan", "run"] if started_by == "sacristan run" else []
    command = [sys.executable, *words, "train.py", str(limit), str(points), str(code)]
    done = run(command, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True)
    assert done.returncode == code
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(f"sacristan: Recorded in my_runs/1, but not whole: {lacks}", last), done.stderr
    assert only_run(tmp_path).status == status


# ---------------------------------------------------------------------- what is parsed

ARGPARSE = """
import argparse, enum, pathlib
class Kind(enum.Enum):
    SGD = "sgd"
    ADAM = "adam"
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--kind", type=Kind, default=Kind.SGD)
parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out"))
parser.add_argument("--api-key", default="sk-123")
parser.add_argument("--max-tokens", type=int, default=8)
parser.add_argument("--amp", action="store_true")
parser.add_argument("data", nargs="?", default="mnist")
"""
PARSERS = {
    "argparse": (
        ARGPARSE + "print(parser.parse_args())",
        ["--lr", "3", "--kind", "adam", "--amp"],
        {"lr": 3.0, "kind": "adam", "out": "out", "api_key": "***", "max_tokens": 8, "amp": True, "data": "mnist"},
        ["amp", "kind", "lr"],
    ),
    "two parsers": (
        ARGPARSE
        + """
first = argparse.ArgumentParser()
first.add_argument("--config")
known, rest = first.parse_known_args()
sub = argparse.ArgumentParser()
commands = sub.add_subparsers(dest="command")
train = commands.add_parser("train")
train.add_argument("--depth", type=int, default=2)
train.set_defaults(run=print)
print(sub.parse_args(rest))
""",
        ["--config", "c.yaml", "train", "--depth", "5"],
        {"config": "c.yaml", "command": "train", "depth": 5, "run": "builtins:print"},
        ["command", "config", "depth"],
    ),
    "simple_parsing": (
        """
from dataclasses import dataclass
from simple_parsing import ArgumentParser
@dataclass
class Opt:
    lr: float = 0.1
    name: str = "sgd"
parser = ArgumentParser()
parser.add_arguments(Opt, dest="opt")
print(parser.parse_args())
""",
        ["--lr", "3"],
        {"opt": {"lr": 3.0, "name": "sgd"}},
        ["opt.lr"],
    ),
    "transformers": (
        """
from dataclasses import dataclass
from transformers.hf_argparser import HfArgumentParser
@dataclass
class ModelArguments:
    width: int = 4
    frozen: bool = False
@dataclass
class TrainArguments:
    lr: float = 0.1
print(HfArgumentParser((ModelArguments, TrainArguments)).parse_args_into_dataclasses())
""",
        ["--lr", "3", "--frozen"],
        {"width": 4, "frozen": True, "lr": 3.0},
        ["frozen", "lr"],
    ),
    "tyro": (
        """
import tyro
from dataclasses import dataclass, field
@dataclass
class Opt:
    lr: float = 0.1
@dataclass
class Args:
    seed: int = 1
    opt: Opt = field(default_factory=Opt)
    track: bool = True
print(tyro.cli(Args))
""",
        ["--opt.lr", "3", "--no-track"],
        {"seed": 1, "opt": {"lr": 3.0}, "track": False},
        ["opt.lr", "track"],
    ),
    "jsonargparse": (
        """
from jsonargparse import ArgumentParser
parser = ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--opt.name", default="sgd")
parser.add_argument("--config", action="config")
print(parser.parse_args())
""",
        ["--opt.name", "adam"],
        {"lr": 0.1, "opt": {"name": "adam"}},
        ["opt.name"],
    ),
    "a subcommand of jsonargparse": (
        """
from jsonargparse import ArgumentParser
fit = ArgumentParser()
fit.add_argument("--model.lr", type=float, default=0.1)
fit.add_argument("--epochs", type=int, default=2)
parser = ArgumentParser()
parser.add_subcommands().add_subcommand("fit", fit)
print(parser.parse_args())
""",
        ["fit", "--model.lr", "0.3"],
        {"subcommand": "fit", "fit": {"model": {"lr": 0.3}, "epochs": 2}},
        ["fit.model.lr"],
    ),
    "subcommands of tyro": (
        """
import functools, tyro
def train(data, lr: float = 0.1): return {"acc": lr}
print(tyro.extras.subcommand_cli_from_dict({"train": functools.partial(train, "mnist"), "test": train}))
""",
        ["train", "--lr", "3"],
        {"command": "train", "data": "mnist", "lr": 3.0},
        ["lr"],
    ),
    "a tuple of tyro": (
        """
import attr, pydantic, tyro
class Model(pydantic.BaseModel): width: int = 8
@attr.s(auto_attribs=True)
class Optimizer: lr: float = 0.1
print(tyro.cli(tuple[Model, Optimizer]))
""",
        ["--1.lr", "3"],
        {"0": {"width": 8}, "1": {"lr": 3.0}},
        ["1.lr"],
    ),
    "a namespace that is a dict": (
        """
import argparse
class Options(dict):
    def __getattr__(self, name):
        if name not in self: raise AttributeError(name)
        return self[name]
    __setattr__ = dict.__setitem__
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
print(parser.parse_args(namespace=Options()).lr)
""",
        ["--lr", "3"],
        {"lr": 3.0},
        ["lr"],
    ),
    "click": (
        """
import click
@click.group()
@click.option("--verbose/--quiet", default=False)
def main(verbose): pass
@main.command()
@click.option("--lr", default=0.1)
def train(lr): print(lr)
main()
""",
        ["train", "--lr", "3"],
        {"verbose": False, "command": "train", "lr": 3.0},
        ["lr"],
    ),
    "typer": (
        "import typer\ndef main(lr: float = 0.1, n: int = 3): print(lr, n)\ntyper.run(main)",
        ["--n", "4"],
        {"lr": 0.1, "n": 4},
        ["n"],
    ),
    "fire": (
        "import fire\ndef main(data, lr=0.1, n=3): print(data, lr, n)\nfire.Fire(main)",
        ["mnist", "--lr=3"],
        {"data": "mnist", "lr": 3, "n": 3},
        ["data", "lr"],
    ),
    "hydra": (
        """
import hydra, pathlib
pathlib.Path("conf").mkdir(exist_ok=True)
pathlib.Path("conf/config.yaml").write_text("lr: 0.1\\nopt:\\n  twice: ${lr}\\n")
@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config): print(config.lr)
main()
""",
        ["lr=3", "+x=2"],
        {"lr": 3, "opt": {"twice": 3}, "x": 2},
        ["lr", "x"],
    ),
    "absl": (
        """
from absl import app, flags
flags.DEFINE_float("lr", 0.1, "lr")
flags.DEFINE_integer("n", 3, "n")
app.run(lambda argv: print(flags.FLAGS.lr))
""",
        ["--lr", "3"],
        {"lr": 3.0, "n": 3},
        ["lr"],
    ),
}
NEEDS = {
    "two parsers": "argparse",
    "a namespace that is a dict": "argparse",
    "a subcommand of jsonargparse": "jsonargparse",
    "subcommands of tyro": "tyro",
    "a tuple of tyro": "tyro",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", sorted(PARSERS, key=lambda name: name not in ("click", "argparse")))
def test_config_is_what_the_script_parsed(tmp_path, name):
    pytest.importorskip(NEEDS.get(name, name))
    text, args, config, typed = PARSERS[name]
    (tmp_path / "train.py").write_text(text)
    code, out, err = started(["-m", "sacristan", "run", "train.py", *args], tmp_path)
    assert code == 0, err
    (tmp_path / "plain.py").write_text(text)
    assert (code, out) == started(["plain.py", *args], tmp_path)[:2]
    found = only_run(tmp_path)
    assert json.loads(json.dumps(found.config)) == config
    if name == "click":
        assert found.info["captured"] == {"click": ["command"]}
    entries = [entry for group in found.get("meta.origins") for entry in group["entries"]]
    assert sorted(entries) == typed


NOT_UNDERSTOOD = {
    "argparse": (
        """
import argparse
class Options:
    __slots__ = ("lr",)
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
for _ in range(2):
    print(parser.parse_args(namespace=Options()).lr)
""",
        ["--lr=3"],
        "argparse: parse_args (TypeError: vars() argument must have __dict__ attribute)",
        {"args": ["--lr=3"]},
    ),
    "jsonargparse": (
        """
import jsonargparse
def as_dict(self): raise ValueError("settings that are no dict")
jsonargparse.Namespace.as_dict = as_dict
parser = jsonargparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
for _ in range(2):
    print(parser.parse_args().lr)
""",
        ["--lr=3"],
        "jsonargparse: parse_args (ValueError: settings that are no dict)",
        {"args": ["--lr=3"]},
    ),
    "tyro": (
        """
import tyro
class Trainer:
    def __init__(self, lr: float = 0.1): self.learning_rate = lr
for _ in range(2):
    print(tyro.cli(Trainer).learning_rate)
""",
        ["--lr=3"],
        "tyro: cli for Trainer",
        {"args": ["--lr=3"]},
    ),
    "hydra": (
        """
import hydra
from omegaconf import OmegaConf
with open("config.yaml", "w") as stream:
    stream.write("lr: 0.1\\ntwice: ${twice:2}\\n")
@hydra.main(version_base=None, config_path=".", config_name="config")
def main(config):
    OmegaConf.register_new_resolver("twice", lambda number: 2 * number)
    print(config.lr, config.twice)
main()
""",
        ["lr=3"],
        "hydra: resolving interpolations (UnsupportedInterpolationType: Unsupported interpolation type twice)",
        {"lr": 3, "twice": "${twice:2}"},
    ),
}


@pytest.mark.parametrize("name", [*NOT_UNDERSTOOD])
def test_parsed_settings_that_are_not_understood_are_named_once_and_the_script_runs_as_ever(tmp_path, name):
    pytest.importorskip(name)
    text, args, named, config = NOT_UNDERSTOOD[name]
    (tmp_path / "train.py").write_text(text)
    command = [sys.executable, "-m", "sacristan", "run", "train.py", *args]
    done = run(command, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True)
    assert (done.returncode, done.stdout) == started(["train.py", *args], tmp_path)[:2]
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "is not recorded" in line]
    assert lines == [f"sacristan: {named} is not recorded"]
    assert json.loads(json.dumps(only_run(tmp_path).config)) == config


# ---------------------------------------------------------------------- commands


def test_python_script_of_a_command_is_recorded(tmp_path):
    (tmp_path / "train.py").write_text(ARGPARSE + "print(parser.parse_args().lr)\n")
    (tmp_path / "train.sh").write_text('#!/bin/sh\npython3 train.py --lr "$1"\npython3 -c "print(1)"\nexit 3\n')
    (tmp_path / "train.sh").chmod(0o755)
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    words = ["-m", "sacristan", "run", "--name", "mine", "--", "./train.sh", "3"]
    assert started(words, tmp_path, env, cold=True) == (3, "3.0\n1\n", "")
    found = only_run(tmp_path)
    assert (found.get("experiment.name"), found.status, found.config["lr"]) == ("mine", "COMPLETED", 3.0)


@pytest.mark.slow
def test_first_rank_that_torchrun_starts_is_recorded(tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, torch\nimport torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "from torch.utils.tensorboard import SummaryWriter\nwriter = SummaryWriter(f'events/{dist.get_rank()}')\n"
        "for step in range(3):\n    total = torch.tensor(1.0 + dist.get_rank())\n    dist.all_reduce(total)\n"
        "    writer.add_scalar('total', total, step)\ndist.destroy_process_group()\n"
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"]
    assert started(["-m", "sacristan", "run", "--", *launcher], tmp_path, cold=True)[0] == 0
    found = only_run(tmp_path)
    assert (found.status, found.metric("total").values.tolist()) == ("COMPLETED", [3.0, 3.0, 3.0])


def test_command_without_python_is_recorded_with_its_output_and_end(tmp_path):
    words = ["-m", "sacristan", "run", "--", "ls", "no such file"]
    code, _, err = started(words, tmp_path)
    assert code == 2
    found = only_run(tmp_path)
    assert (found.get("experiment.name"), found.status) == ("ls", "FAILED")
    assert "no such file" in found.output
    assert "no such file" in err
    assert found.get("meta.script.kind") == "command"
    code, _, err = started(["-m", "sacristan", "run", "--", "no-such-program"], tmp_path)
    assert code == 127


def test_command_that_executes_a_notebook_says_what_records_it(tmp_path):
    (tmp_path / "papermill").write_text(f"#!{sys.executable}\nprint('executed')\n")
    (tmp_path / "papermill").chmod(0o755)
    (tmp_path / "train.ipynb").touch()
    command = [sys.executable, "-m", "sacristan", "run", "--", "./papermill", "made.ipynb", "train.ipynb"]
    done = run(command, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True, cold=True)
    assert (done.returncode, done.stdout) == (0, "executed\n")
    assert done.stderr.endswith("; for a notebook, write sacristan run -m IPython train.ipynb\n")
    assert not (tmp_path / "my_runs").exists()


def test_script_without_a_suffix_is_recorded_with_its_source(tmp_path):
    (tmp_path / "train").write_text("#!/usr/bin/env python\nprint('trained')\n")
    assert started(["-m", "sacristan", "run", "train"], tmp_path) == (0, "trained\n", "")
    assert [name for name, _ in only_run(tmp_path).get("experiment.sources")] == ["train"]


# What takes long to import, and a script may never use.
HEAVY = ["email", "importlib.metadata", "numpy", "pandas", "pynvml", "torch", "yaml", "zipfile"]
SEEN = f"import sys; print([name for name in {HEAVY} if name in sys.modules])\n"


@pytest.mark.parametrize(
    ("ways", "script"),
    [
        (["-m", "sacristan", "run"], SEEN),
        ([], f"import sacristan\nrun = sacristan.init(config={{'lr': 0.1}})\n{SEEN}run.finish()\n{SEEN}"),
    ],
)
def test_script_starts_without_what_it_does_not_use_and_its_record_is_whole(tmp_path, ways, script):
    (tmp_path / "train.py").write_text(script)
    done = subprocess.run([sys.executable, *ways, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert set(done.stdout.splitlines()) == {"[]"}
    folder = tmp_path / "my_runs" / "1"
    record, provenance = (json.loads((folder / name).read_text()) for name in ("run.json", "provenance.json"))
    assert record["status"] == "COMPLETED"
    packages = [package.partition("==")[0] for package in record["experiment"]["dependencies"]]
    assert packages == ["numpy", "sacred", "sacristan"]
    assert {"hostname", "os", "python_version", "cpu", "ENV"} <= record["host"].keys()
    assert {"git", "lab", "packages", "libraries", "machine", "determinism", "reads"} == provenance.keys()
    assert {"numpy", "sacred"} <= provenance["packages"].keys()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["system/memory_percent"]["count"] == 1
    assert json.loads((folder / "metrics.json").read_text()).keys() == summary.keys()
