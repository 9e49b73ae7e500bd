"""The tests' own processes: one that is forked from the warm Python is as one that was started afresh."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.labs import copy_lab
from tests.processes import PIPE, Process, run, warm_children

ROOT = Path(__file__).parents[2]
# What a process finds when it starts.
TELL = """
import json, os, random, signal, sys, threading
signals = [number for number in signal.valid_signals() if number < 32]
json.dump({
    "name": __name__, "file": globals().get("__file__"), "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path,
    "cwd": os.getcwd(), "env": dict(os.environ), "flags": list(sys.flags), "filters": repr(sys.warnoptions),
    "signals": [str(signal.getsignal(number)) for number in signals], "mask": list(signal.pthread_sigmask(0, ())),
    "streams": [[s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.isatty()]
                for s in (sys.stdin, sys.stdout, sys.stderr)],
    "threads": [thread.name for thread in threading.enumerate()], "descriptors": len(os.listdir("/proc/self/fd")),
    "main": sys.modules["__main__"].__dict__ is globals(),
    "leads": [os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid()],
    "lab": sorted({"sacristan", "tests"} & sys.modules.keys()),
}, sys.stdout)
"""
# Ways to end.
END = """
import atexit, os, signal, sys, threading, time

def late():
    threading.main_thread().join()
    print("thread")

atexit.register(print, "atexit")
threading.Thread(target=late).start()
print("begin")
exec(sys.argv[1])
"""


@pytest.fixture
def script(tmp_path):
    """Write a script below the test's folder, and return its path."""

    def write(text, name="sub/script.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


def is_alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # perhaps between the two questions
        return False


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", [{}, {"start_new_session": True}, {"process_group": 0}], ids=str)
@pytest.mark.parametrize("form", ["script", "module", "text"])
def test_warm_process_finds_what_a_cold_one_does(script, tmp_path, form, options):
    script(TELL)
    words = {"script": ["sub/script.py"], "module": ["-m", "sub.script"], "text": ["-c", TELL]}[form]
    command = [sys.executable, *words, "a", "b c"]
    env = {**os.environ, "PYTHONPATH": f"{tmp_path / 'more'}:relative", "GIVEN": "x"}
    options = {"cwd": tmp_path, "env": env, "capture_output": True, "stdin": subprocess.DEVNULL, **options}
    warm, cold = (json.loads(run(command, cold=cold, **options).stdout) for cold in (False, True))
    warm["path"] = [
        path for path in warm["path"] if not path.endswith("setuptools/_vendor")
    ]  # which setuptools appends
    assert warm == cold
    assert warm["lab"] == []


def test_warm_process_has_imported_packages_and_the_lab_not(script):
    path = script("import sys; print('torch' in sys.modules, 'sacred' in sys.modules, 'runs' in sys.modules)")
    assert run([sys.executable, path], capture_output=True, text=True).stdout == "True True False\n"
    assert run([sys.executable, path], capture_output=True, text=True, cold=True).stdout == "False False False\n"


# Imports modules of the lab, tells which those are and what stands in each, and records a run.
IMPORTING = """
import importlib, json, sys
sys.path.insert(0, sys.argv.pop(1))
for name in sys.argv.pop(1).split():
    importlib.import_module(f"sacristan.{name}")
lab = [name for name in sys.modules if name.partition(".")[0] == "sacristan"]
for name in lab:
    module = sys.modules[name]
    assert module.__spec__.name == name and module.__loader__ is module.__spec__.loader, name
    assert not module.__spec__._initializing, name
    if "." in name:
        assert getattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2]) is not None, name
tell = [[name, sorted(vars(sys.modules[name])), sys.modules[name].__file__] for name in lab]
print(json.dumps(tell), flush=True)
from sacristan.experiments import Experiment
data = [sys.modules[name].ingredient for name in lab if name == "sacristan.ingredients.data"]
ex = Experiment("imported", ingredients=data)

@ex.automain
def main(_run):
    from sacristan.ingredients import MLP
    return MLP.__name__
"""


@pytest.fixture(scope="module")
def copied_lab(tmp_path_factory):
    """A copy of the lab, whose modules every process imports by itself."""
    folder = tmp_path_factory.mktemp("copied")
    copy_lab(folder)
    return folder


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "modules",
    [
        "experiments",
        "ingredients.data experiments.training.loop ingredients.scheduler observers.mongo.delivery",
        "observers.record.points runs.commands.ls runs.rerun.resuming",
    ],
)
def test_imported_modules_are_those_that_a_process_imports_by_itself(script, tmp_path, copied_lab, modules):
    path, found = script(IMPORTING), []
    for root in (ROOT, copied_lab):
        (tmp_path / root.name).mkdir()
        command = [sys.executable, path, str(root), modules]
        done = run(command, cwd=tmp_path / root.name, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        told = done.stdout.splitlines()[0].replace(str(root), "ROOT")
        record = next((tmp_path / root.name).glob("my_runs/*/run.json"))
        experiment = json.loads(record.read_bytes())["experiment"]
        libraries = json.loads((record.parent / "provenance.json").read_bytes())["libraries"]
        digests = {name: library["digest"] for name, library in libraries.items()}
        found.append([json.loads(told), experiment["sources"], experiment["dependencies"], digests])
    assert found[0] == found[1]
    assert "sacristan" in found[0][3]


# Has the modules of a lab, and imports one in a child, and another one that is changed meanwhile in the next.
CHANGING = """
import os, runpy, sys
from pathlib import Path
lab = sys.argv[2]
assert type(sys.meta_path.pop(0)).__name__ == "ImportedModules"  # that of this lab
modules = runpy.run_path(sys.argv[1])["ImportedModules"](Path(lab))
sys.path.insert(0, lab)
given = modules._found["sacristan.configs"].module
for path in (None, Path(lab, "runs", "errors.py")):
    if path:
        path.write_text(path.read_text() + "ADDED = 1\\n")
    if os.fork() == 0:
        import sacristan.configs, sacristan.runs.errors
        print(sacristan.configs is given, hasattr(sacristan.runs.errors, "ADDED"), flush=True)
        os._exit(0)
    os.wait()
"""


def test_lab_that_has_changed_is_imported_anew(script, copied_lab):
    command = [sys.executable, script(CHANGING), str(ROOT / "tests" / "warm_modules.py"), str(copied_lab)]
    done = run(command, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True False\nFalse True\n", "")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("pass", 0),
        ("sys.exit()", 0),
        ("sys.exit(3)", 3),
        ("sys.exit(256)", 0),
        ("sys.exit('a reason')", 1),
        ("sys.exit((1, 2))", 1),
        ("raise ValueError('no')", 1),
        ("def f(): 1 / 0\nf()", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("os._exit(7)", 7),
        ("class C:\n __repr__ = lambda c: 'C'\n __call__ = lambda c: 1 / 0\natexit.register(C())", 0),
        ("sys.excepthook = lambda *error: print('hook', error[0]); raise ValueError", 1),
    ],
)
def test_warm_process_ends_as_a_cold_one_does(script, how, code):
    command = [sys.executable, script(END), how]
    warm, cold = (run(command, capture_output=True, text=True, cold=cold) for cold in (False, True))
    assert (warm.returncode, warm.stdout, warm.stderr) == (cold.returncode, cold.stdout, cold.stderr)
    assert warm.returncode == code


# Starts TELL, and tells what it finds of it besides.
PARENT = """
import json, os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
options = {"env": {**os.environ, "GIVEN": "x"}, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
child = subprocess.Popen([sys.executable, "sub/tell.py", "a"], process_group=0, cwd=sys.argv[1], **options)
found = json.loads(child.communicate()[0])
found |= {"child": found["pid"] == child.pid and found["parent"] == os.getpid(), "code": child.wait()}
ours, theirs = os.pipe()
writes = f"import os; os.write({theirs}, b'passed')"
subprocess.run([sys.executable, "-c", writes], check=True, pass_fds=[theirs], **options)
found["passed"] = os.read(ours, 6).decode()
killed = subprocess.Popen([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(99)"], **options)
killed.stdout.readline()
killed.kill()
found |= {"killed": killed.wait(), "odd": []}
for odd in {"preexec_fn": int}, {"env": {**os.environ, "PYTHONHASHSEED": "3"}}:
    odd_one = subprocess.run([sys.executable, "-c", "import sys; print('torch' in sys.modules)"], **{**options, **odd})
    found["odd"].append(odd_one.stdout.decode())
json.dump(found, sys.stdout)
"""


TORCH = "import sys; print('torch' in sys.modules)"


def test_what_subprocess_starts_in_a_test_is_cold_however_its_worker_was_started():
    command = [sys.executable, "-c", TORCH]
    found = [start(command, capture_output=True, text=True).stdout for start in (subprocess.run, run)]
    assert found == ["False\n", "True\n"]


@pytest.mark.parametrize("starts_python", [False, True])
def test_warm_child_starts_warm_children_itself_if_asked_to(starts_python):
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {TORCH!r}])"
    with warm_children(starts_python=starts_python):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{starts_python}\n", "")


def test_python_that_a_warm_process_starts_is_warm_and_its_child(script, tmp_path):
    script(
        TELL.replace('"main":', '"pid": os.getpid(), "parent": os.getppid(), "torch": "torch" in sys.modules, "main":'),
        "sub/tell.py",
    )
    command = [sys.executable, script(PARENT), tmp_path]
    options = {"starts_python": True, "capture_output": True}
    warm, cold = (json.loads(run(command, cold=cold, **options).stdout) for cold in (False, True))
    assert (warm.pop("torch"), cold.pop("torch")) == (True, False)
    for found in (warm, cold):
        del found["pid"], found["parent"]
    warm["path"] = [path for path in warm["path"] if not path.endswith("setuptools/_vendor")]
    assert warm == cold
    assert warm["passed"] == "passed"
    assert (warm["child"], warm["code"], warm["killed"], warm["odd"]) == (True, 0, -signal.SIGKILL, ["False\n"] * 2)


BECOMING = """
import json, os, signal, sys
print(json.dumps([os.getpid(), os.getpgrp(), "torch" in sys.modules]), flush=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.chdir("sub")
os.execve(sys.executable, [sys.executable, "next.py", "of"], {**os.environ, "LEFT": "this"})
"""
NEXT = """
import json, os, signal, sys
found = [os.getpid(), os.getpgrp(), "torch" in sys.modules]
print(json.dumps(found + [os.environ["LEFT"], sys.argv, os.getcwd(), signal.getsignal(signal.SIGTERM)]))
sys.exit(7)
"""


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_python_that_a_process_becomes_keeps_pid_and_group_and_ends_as_it(script, tmp_path, cold):
    command = [sys.executable, script(BECOMING)]
    script(NEXT, "sub/next.py")
    options = {"becomes_python": True, "process_group": 0, "stdout": PIPE, "text": True, "cwd": tmp_path, "cold": cold}
    with Process(command, **options) as process:
        first, second = process.communicate()[0].splitlines()
    assert json.loads(first)[2] == (not cold)
    expected = [process.pid, process.pid, not cold, "this", ["next.py", "of"], str(tmp_path / "sub"), signal.SIG_IGN]
    assert json.loads(second) == expected
    assert process.returncode == 7


@pytest.mark.parametrize(("ending", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 15)", -15), ("1 / 0", 1)])
def test_process_that_becomes_no_other_ends_as_it_does(script, ending, code):
    command = [sys.executable, script(f"import os, sys; {ending}")]
    assert run(command, becomes_python=True, capture_output=True).returncode == code


def test_variable_that_is_read_at_the_start_starts_cold(script):
    path = script("import sys; print('torch' in sys.modules, hash('x'))")
    command = [sys.executable, path]
    seeded = [run(command, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "3"}) for _ in range(2)]
    assert seeded[0].stdout == seeded[1].stdout
    assert seeded[0].stdout.startswith("False ")


def test_random_state_is_another_in_each_process(script):
    path = script("import random, numpy as np; print(random.random(), np.random.random())")
    lines = [run([sys.executable, path], capture_output=True, text=True).stdout.split() for _ in range(2)]
    assert {*lines[0]}.isdisjoint(lines[1])


def test_process_has_default_signals_though_the_tests_ignore_them(script):
    path = script("import signal; print(signal.getsignal(2), signal.getsignal(15))")
    said = {}
    before = [signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        for cold in (False, True):
            said[cold] = run([sys.executable, path], capture_output=True, text=True, cold=cold).stdout
            words = {"capture_output": True, "text": True, "cold": cold, "ignore": [signal.SIGTERM]}
            assert run([sys.executable, path], **words).stdout.split()[-1] == str(signal.SIG_IGN.value)
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
    assert said[False] == said[True]
    assert said[False].split()[-1] == str(signal.SIG_DFL.value)


def test_streams_of_all_kinds_reach_their_places(script, tmp_path):
    path = script("import sys; print(sys.stdin.read()); print('é', file=sys.stderr); sys.stdout.flush(); print('x')")
    command = [sys.executable, path]
    with Process(command, stdin=PIPE, stdout=PIPE, stderr=subprocess.STDOUT, text=True) as process:
        process.stdin.write("in")
        process.stdin.close()
        assert process.communicate()[0].splitlines() in (["in", "é", "x"], ["é", "in", "x"])
    with (tmp_path / "out").open("wb") as out:
        run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL)
    assert (tmp_path / "out").read_text() == "\nx\n"
    # Much to both at once is read from both at once.
    path = script("import sys; [print('x' * 1000, file=s) for _ in range(999) for s in (sys.stdout, sys.stderr)]")
    done = run([sys.executable, path], capture_output=True, text=True)
    assert len(done.stdout) == len(done.stderr) == 999 * 1001


def test_process_that_takes_too_long_is_killed(script):
    path = script("import os, sys, time; print(os.getpid(), flush=True); time.sleep(1000)")
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        run([sys.executable, path], capture_output=True, timeout=0.5)
    assert not is_alive(int(caught.value.output))


def test_command_that_does_not_exist_ends_with_127():
    done = run(["/no/such/program"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (127, "/no/such/program: No such file or directory\n")


# Starts a grandchild in a session of its own, whose pid it tells, and goes on for ever or ends.
FAMILY = """
import subprocess, sys, time
child = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(1000)"]
print(subprocess.Popen(child, start_new_session=True).pid, flush=True)
sys.argv[1:] or time.sleep(1000)
"""


@pytest.mark.parametrize("words", [[], ["end"]])
@pytest.mark.parametrize("cold", [False, True])
def test_closed_process_leaves_no_descendant_behind(script, words, cold):
    with Process([sys.executable, script(FAMILY), *words], stdout=PIPE, text=True, cold=cold) as process:
        grandchild = int(process.stdout.readline())
        if words:
            assert process.wait() == 0
        assert is_alive(grandchild)
    assert process.returncode == (0 if words else -signal.SIGKILL)
    assert not is_alive(process.pid)
    assert not is_alive(grandchild)


def test_process_that_is_forgotten_is_closed(script):
    process = Process([sys.executable, script(FAMILY)], stdout=PIPE, text=True)
    pids = process.pid, int(process.stdout.readline())
    del process
    assert not any(map(is_alive, pids))


def test_tests_that_are_killed_leave_no_process_behind(script):
    """Neither their processes, nor what those started, nor the warm process, which is here one that imports nothing."""
    path = script(FAMILY)
    server = path.with_name("warm_python.py")
    nothing = "PACKAGES, end_quickly, forget_random_state = (), *[lambda: None] * 2\n"
    nothing += "import_lab = lambda *_: None\n"
    server.write_text((ROOT / "tests" / server.name).read_text().replace("if __name__ ==", f"{nothing}if __name__ =="))
    body = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from tests import processes
from tests.processes import PIPE, Process, _server
processes._SERVER = Path({str(server)!r})
process = Process([sys.executable, {str(path)!r}], stdout=PIPE, text=True)
print(process.pid, process.stdout.readline().strip(), _server().pid, flush=True)
process.wait()
"""
    with Process([sys.executable, "-c", body], stdout=PIPE, text=True) as tests:
        pids = list(map(int, tests.stdout.readline().split()))
        assert len(pids) == 3
        assert all(map(is_alive, pids))
        tests.kill()
        deadline = time.monotonic() + 60
        while any(map(is_alive, pids)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
