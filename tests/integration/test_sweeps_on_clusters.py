"""Agents on clusters: a real Ray on this machine, submitit's executors; every point once, whatever dies over it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shlex
import signal
import sys
import tempfile
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from sacristan.configs.packages import install_command
from sacristan.observers.mongo import Destination
from sacristan.runs import MissingExtraError, SweepError, open_store
from sacristan.runs.sweeps import Definition
from sacristan.runs.sweeps.agents import AgentOptions
from sacristan.runs.sweeps.agents.commands import run_sweep
from sacristan.runs.sweeps.agents.engines import Engine, _Crew
from sacristan.runs.sweeps.spec import read_spec
from sacristan.runs.sweeps.study.home import Place
from sacristan.runs.sweeps.views import Watcher
from tests.integration.test_real_slurm import free_ports
from tests.integration.test_sweeps import FAST, GRID, ROOT, TINY, WAITING, command
from tests.processes import PIPE, STDOUT, Process, run

PACKAGES = ("sacred", "sacred.observers", "sacred.commandline_options")
WORKERS = [{}, {}]
# Ray and submitit leave processes and files to the garbage collector. On a loaded machine, Ray takes minutes to start.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.timeout(1800),
]


@pytest.fixture
def grid(tmp_path):
    """A sweep of four points in a folder, and what its agents work with."""
    (tmp_path / "tiny.py").write_text(TINY)
    place = Place(tmp_path / "my_runs")
    where = {"script": "tiny.py", "module": "", "base": str(tmp_path), "cwd": str(tmp_path), "experiment": "tiny"}
    how = {"settings": (), "options": (), "seed": 0, "count": None, "storage": "", "created": ""}
    definition = Definition(id="s", spec=read_spec(GRID).document, **where, **how)
    home = place.home("s")
    home.create(definition)
    home.close()
    return place, definition, AgentOptions(place.base, packages=PACKAGES)


def work(engine, grid):
    place, definition, means = grid
    engine.check()
    return engine.run(place, definition, means, WORKERS, place.base / "sweeps" / "s" / "output.log")


def check_done_once(status, base):
    assert sorted(point.values for point in status.points.values()) == [((x - 2) ** 2 + 0.25,) for x in (2, 1, 3, 0)]
    with open_store(base) as store:
        completed = [run["meta.sweep.trial"] for run in store.find() if run.status == "COMPLETED"]
    assert sorted(completed) == [0, 1, 2, 3]


# 127.0.0.1 alone, and a token that Ray does not write to the home folder.
OF_RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": "of-the-tests" * 3,
}


@pytest.fixture(scope="module")
def ray():
    os.environ.update(OF_RAY)
    ray = pytest.importorskip("ray", reason="Ray is not installed: the extra ray")
    quiet = {"log_to_driver": False, "configure_logging": False, "include_dashboard": False}
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        few = {"num_cpus": 2, "resources": {"disk": 2}, "object_store_memory": 100 * 2**20}
        ray.init("local", _temp_dir=folder, **few, **quiet)
        yield ray
        ray.shutdown()


def agents_of(process):
    """Return the processes of agents below a process."""
    found = []
    for child in psutil.Process(process).children(recursive=True):
        try:
            if "sacristan.runs.sweeps.agents.agent_process" in child.cmdline():
                found.append(child)
        except psutil.Error:
            pass
    return found


# ---------------------------------------------------------------------- Ray


# First, as Ray runs in this process once a test has asked for `ray`.
@pytest.mark.slow
@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_no_cluster_at_an_address_is_said_at_once(grid, form):
    pytest.importorskip("ray", reason="Ray is not installed: the extra ray")
    address = form.format(free_ports(1)[0])
    with pytest.raises(SweepError) as raised:
        work(Engine("ray", address=address), grid)
    why = "where no cluster of Ray answers (Connection refused); start one by: ray start --head"
    assert str(raised.value) == f"sweep.address: got '{address}', {why}"


@pytest.mark.nightly
def test_actors_of_ray_try_each_point_once(ray, grid):
    status = work(Engine("ray", resources={"cpus": 1, "disk": 0.5}), grid)
    check_done_once(status, grid[0].base)
    assert ray.available_resources()["CPU"] == 2


@pytest.mark.nightly
@pytest.mark.parametrize("victim", ["agent", "actor"])
def test_an_agent_that_is_killed_on_a_cluster_is_followed_by_another(ray, grid, victim):
    killed = []

    def kill():
        while not killed:
            for agent in agents_of(os.getpid()):
                process = agent if victim == "agent" else agent.parent()
                if (grid[0].base / "1").exists():  # which has begun to work
                    killed.append(process.pid)
                    process.kill()
                    return
            time.sleep(0.02)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    status = work(Engine("ray"), grid)
    thread.join(10)
    assert killed
    check_done_once(status, grid[0].base)


@pytest.mark.nightly
def test_more_actors_than_there_is_room_for_do_not_keep_a_sweep_from_its_end(ray, grid):
    status = work(Engine("ray", resources={"cpus": 2}), grid)
    check_done_once(status, grid[0].base)


@pytest.mark.nightly
def test_the_lab_is_shipped_to_an_existing_cluster(ray, grid):
    folder = grid[0].base.parent
    words = ("sweep.over={x: [0.0, 1.0, 2.0]}", "sweep.metric=loss", FAST, "sweep.engine=ray", "sweep.id=shipped")
    address = ray.get_runtime_context().gcs_address
    done = command("sweep.run", "with", *words, f"sweep.address={address}", cwd=folder)
    assert "3 of 3 done" in done.stdout, done.stdout
    with open_store(grid[0].base) as store:
        found = store.find("meta.sweep.id=shipped")
    assert len(found) == 3
    assert {"_ray_pkg_" in run["experiment.base_dir"] for run in found} == {True}


# Two nodes on this machine, of which the second one is lost.
CLUSTER = """
import pathlib, sys, time
from ray.cluster_utils import Cluster

node = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "node_ip_address": "127.0.0.1"}
cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
second = cluster.add_node(**node)
print(cluster.address, flush=True)
while not pathlib.Path("lose").exists():
    time.sleep(0.05)
cluster.remove_node(second, allow_graceful=False)
sys.stdin.read()
cluster.shutdown()
"""


@pytest.mark.nightly
def test_a_lost_node_costs_no_point(ray, grid):
    folder = grid[0].base.parent
    slow = TINY.replace("for step in range(4):", "for step in range(4):\n        time.sleep(0.3)")
    (folder / "tiny.py").write_text(slow)
    words = ("sweep.over={x: [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]}", "sweep.metric=loss", FAST, "sweep.id=lost")
    with Process([sys.executable, "-c", CLUSTER], cwd=folder, stdin=PIPE, stdout=PIPE, text=True, cold=True) as nodes:
        address = f"sweep.address={nodes.stdout.readline().strip()}"
        command = [
            sys.executable,
            "tiny.py",
            "sweep.run",
            "with",
            *words,
            "sweep.engine=ray",
            "sweep.workers=2",
            address,
        ]
        with Process(command, cwd=folder, stdout=PIPE, stderr=STDOUT, text=True) as sweep:
            said = []
            for line in sweep.stdout:
                said.append(line)
                if " done: " in line:
                    (folder / "lose").touch()
        nodes.stdin.close()
        nodes.wait(60)
    assert "6 of 6 done" in "".join(said)
    with open_store(grid[0].base) as store:
        completed = [run["meta.sweep.trial"] for run in store.find("meta.sweep.id=lost") if run.status == "COMPLETED"]
    assert sorted(completed) == list(range(6))


class Head:
    """A cluster of one node, started as a user does, that can be lost and started again."""

    def __init__(self, folder):
        self.folder, self.port, self.process = folder, free_ports(1)[0], None
        self.address = f"127.0.0.1:{self.port}"

    def __enter__(self):
        words = [f"--port={self.port}", f"--temp-dir={self.folder}", "--node-ip-address=127.0.0.1", "--num-cpus=2"]
        words += ["--num-gpus=2", "--include-dashboard=false", f"--object-store-memory={100 * 2**20}", "--block"]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", *words]
        for _ in range(3):  # Ray's own processes have 15 s to start, which a loaded machine may not give them
            streams = {"stdout": PIPE, "stderr": STDOUT, "text": True}
            self.process = Process(command, env={**os.environ, **OF_RAY}, cold=True, **streams)
            said = []
            for line in self.process.stdout:
                said.append(line)
                if "Ray runtime started" in line:
                    return self
            self.__exit__()
        pytest.fail("".join(said))

    def __exit__(self, *_):
        for process in psutil.process_iter(["cmdline"]):
            if any(str(self.folder) in word for word in process.info["cmdline"] or ()):
                with contextlib.suppress(psutil.Error):
                    process.kill()
        self.process.__exit__(None, None, None)


@pytest.fixture(scope="module")
def head():
    pytest.importorskip("ray", reason="Ray is not installed: the extra ray")
    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        Head(folder) as one,
    ):
        yield one


def on_cluster(grid, text, head, over, *words):
    """Return the command of a sweep of a script over values of x, and how it is started."""
    folder = grid[0].base.parent
    (folder / "tiny.py").write_text(text)
    given = [
        f"sweep.over={{x: {over}}}",
        "sweep.metric=loss",
        FAST,
        "sweep.engine=ray",
        "sweep.workers=2",
        "sweep.id=r",
    ]
    command = [sys.executable, "tiny.py", "sweep.run", "with", *given, f"sweep.address={head.address}", *words]
    return command, {"cwd": folder, "env": {**os.environ, **OF_RAY}, "stdout": PIPE, "stderr": STDOUT, "text": True}


# Each run waits for the other one, so that two agents have one each.
MEETING = TINY.replace(
    "    for step in range(4):",
    """
    open(f"FOLDER/{x}", "w").close()
    while len(os.listdir("FOLDER")) < 2:
        time.sleep(0.02)
    for step in range(4):""",
).replace("return x", "return os.environ.get('CUDA_VISIBLE_DEVICES', 'all')")


@pytest.mark.nightly
@pytest.mark.parametrize(("gpus", "expected"), [(1, [{"0"}, {"1"}]), (0.5, [{"0", "1"}] * 2), (0, [{"-1"}] * 2)])
def test_records_keep_the_gpus_that_ray_assigns_to_an_agent(head, grid, gpus, expected):
    meeting = grid[0].base.parent / "meeting"
    meeting.mkdir()
    text = MEETING.replace("FOLDER", str(meeting))
    words, how = on_cluster(grid, text, head, [0.0, 1.0], f"sweep.resources={{gpus: {gpus}}}")
    done = run(words, timeout=300, **how)
    assert "2 of 2 done" in done.stdout, done.stdout
    assert ("agents get none; for one each: sweep.resources='{gpus: 1}'" in done.stdout) is not bool(gpus)
    with open_store(grid[0].base) as store:
        found = sorted(store.find("meta.sweep.id=r"), key=lambda one: one.result)
    assert all(one.result in seen for one, seen in zip(found, expected, strict=True)), [one.result for one in found]
    assert [one["provenance.machine.cuda_visible_devices"] for one in found] == [one.result for one in found]


@pytest.mark.nightly
@pytest.mark.parametrize("lost", ["head", "restarted head", "driver"])
def test_a_sweep_whose_head_or_driver_is_lost_is_continued_by_the_same_command(grid, lost):
    pytest.importorskip("ray", reason="Ray is not installed: the extra ray")
    slow = TINY.replace("for step in range(4):", "for step in range(4):\n        time.sleep(0.5)")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True))
        head = Head(folder)
        cluster = stack.enter_context(contextlib.ExitStack())
        cluster.enter_context(head)
        words, how = on_cluster(grid, slow, head, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
        with Process(words, **how) as sweep:
            said = []
            for line in sweep.stdout:
                said.append(line)
                if "[1/6]" not in line:
                    continue
                if lost == "driver":
                    sweep.kill()
                    continue
                cluster.close()
                if lost == "restarted head":
                    cluster.enter_context(head)
        if lost != "driver":
            assert sweep.returncode == 1
            assert said[-1].startswith(f"error: sweep.engine=ray: the head of the cluster at {head.address} was lost (")
            assert said[-1].endswith("give the same command again to continue sweep r\n")
        if lost == "head":
            cluster.enter_context(head)
        done = run(words, timeout=300, **how)
    assert "6 of 6 done" in done.stdout, done.stdout
    with open_store(grid[0].base) as store:
        completed = [one["meta.sweep.trial"] for one in store.find("meta.sweep.id=r") if one.status == "COMPLETED"]
    assert sorted(completed) == list(range(6))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "token", [{"RAY_AUTH_TOKEN": "wrong" * 8}, {"RAY_AUTH_TOKEN": "", "RAY_AUTH_TOKEN_PATH": "/none"}]
)
def test_a_wrong_token_is_told_from_no_cluster(head, grid, token):
    words, how = on_cluster(grid, TINY, head, [0.0])
    done = run(words, timeout=300, **{**how, "env": {**how["env"], **token}})
    assert done.returncode == 1
    said = f"error: sweep.address: got '{head.address}', whose cluster does not accept this token, or gets none; "
    assert done.stdout.splitlines()[-1].startswith(said)


class Ended:
    """An agent that has ended, or waits for a place till it is killed."""

    def __init__(self, code):
        self.code, self.is_waiting = code, code is None

    def poll(self):
        return self.code

    def interrupt(self, number):
        self.code, self.is_waiting = -number, False

    def release(self):
        pass

    def wait(self, timeout):
        return True


def test_an_agent_that_waits_is_let_go_once_when_another_finds_nothing_left(tmp_path):
    agents = [Ended(0), Ended(None)]
    (tmp_path / "log").touch()
    crew = _Crew(lambda variables: agents.pop(0), [{}, {}], tmp_path / "log")
    crew.look(SimpleNamespace(num_finished=0))
    assert not crew.is_working


@pytest.mark.nightly
def test_what_no_node_has_is_refused(ray, grid):
    with pytest.raises(SweepError, match="got CPU 64 for each agent, but this machine has CPU 2; ask for less"):
        work(Engine("ray", resources={"cpus": 64}), grid)


@pytest.mark.nightly
def test_ray_that_does_not_start_is_one_sentence(tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed: the extra ray")
    (tmp_path / "tiny.py").write_text(TINY)
    words = ("sweep.run", "with", "sweep.over={x: [1.0]}", FAST, "sweep.engine=ray", "sweep.resources={cpus: 1}")
    done = command(*words, cwd=tmp_path, env={**os.environ, "RAY_TMPDIR": "/proc/nowhere"})
    assert done.returncode == 1
    assert "error: sweep.engine=ray: Ray does not start on this machine (" in done.stdout.splitlines()[-1]
    assert "/proc/nowhere" in done.stdout.splitlines()[-1]


# ---------------------------------------------------------------------- Slurm


def needing_submitit():
    pytest.importorskip("submitit", reason="submitit is not installed: the extra slurm")


@pytest.mark.nightly
@pytest.mark.parametrize("cluster", ["debug", "local"])
def test_tasks_of_an_array_try_each_point_once(grid, cluster, capfd):
    needing_submitit()
    status = work(Engine("slurm", slurm={"cluster": cluster, "timeout_min": 5, "partition": "none"}), grid)
    check_done_once(status, grid[0].base)
    assert "agents are queued" in capfd.readouterr().out
    assert not list(grid[0].base.rglob("request-*"))


def test_options_are_typed_as_the_docs_print_them(tmp_path):
    needing_submitit()
    (tmp_path / "tiny.py").write_text(TINY)
    printed = re.findall(r"sweep\.\w+='[^']*'", (ROOT / "docs/sweeping.md").read_text())
    given = {name: text for name, _, text in (one.replace("'", "").partition("=") for one in printed)}
    assert given["sweep.slurm"] == "{cluster: local}"
    words = ("sweep.over={x: [1.0]}", FAST, "sweep.engine=slurm", f"sweep.resources={given['sweep.resources']}")
    done = command("sweep.run", "with", *words, f"sweep.slurm={given['sweep.slurm']}", cwd=tmp_path)
    assert "1 of 1 done" in done.stdout, done.stdout


@pytest.mark.parametrize("name", ["local", "slurm"])
def test_ctrl_c_says_how_to_continue_unless_the_job_continues(grid, capsys, name):
    class Interrupted(Engine):
        def check_extras(self):
            """Need no package: nothing is submitted."""

        def run(self, *_):
            raise KeyboardInterrupt

    place, definition, options = grid
    with pytest.raises(KeyboardInterrupt):
        run_sweep(place, read_spec(GRID), definition, options, WORKERS, Interrupted(name), lambda *_: None)
    assert ("give the same command again" in capsys.readouterr().out) == (name == "local")


@pytest.mark.nightly
def test_agents_that_are_at_work_are_not_submitted_again(grid, capfd):
    needing_submitit()
    place, definition, _ = grid
    with contextlib.closing(place.home(definition.id)) as home:
        home.beat("of an earlier array")
        status = work(Engine("slurm", slurm={"cluster": "local", "timeout_min": 5}), grid)
        home.leave("of an earlier array")
    check_done_once(status, place.base)
    assert "1 of 2 agents are at work already" in capfd.readouterr().out
    assert len(list((place.base / "sweeps" / "s" / "slurm").glob("*_submitted.pkl"))) == 1


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM])  # a warning, and what begins a grace time
def test_a_task_that_is_preempted_is_queued_again_and_sees_its_point_through(grid, number):
    needing_submitit()
    place, definition, means = grid
    folder = place.base.parent
    (folder / "fault.py").write_text(WAITING)
    spec = {**GRID, "parameters": {"kind": {"values": ["waits", "plain"]}}}
    definition = dataclasses.replace(definition, id="preempted", spec=read_spec(spec).document)
    with contextlib.closing(place.home(definition.id)) as home:
        home.create(definition)

    def preempt():
        until = time.monotonic() + 60
        while not (folder / "waits").exists() and time.monotonic() < until:
            time.sleep(0.02)
        (folder / "fault.py").write_text("pass")
        for child in psutil.Process().children(recursive=True):
            if "submitit.core._submit" in child.cmdline():
                child.send_signal(number)

    thread = threading.Thread(target=preempt, daemon=True)
    thread.start()
    options = {"cluster": "local", "timeout_min": 5, "max_num_timeout": 7, "python": shlex.quote(sys.executable)}
    status = Engine("slurm", slurm=options).run(place, definition, means, [{}], place.base / "log")
    thread.join(10)
    assert [point.state for point in status.points.values()] == ["COMPLETE", "COMPLETE"]
    with open_store(place.base) as store:
        assert sorted(run.status for run in store.find()) == ["COMPLETED", "COMPLETED", "INTERRUPTED"]


@pytest.mark.parametrize(("asks", "expected"), [("", 5), ("7", 1)])
def test_a_job_is_watched_until_it_has_ended_or_slurm_does_not_know_it(grid, monkeypatch, tmp_path, asks, expected):
    from sacristan.runs.sweeps.agents import slurm_agents

    monkeypatch.setattr(slurm_agents, "_LOOK_S", 0.0)
    monkeypatch.setattr(slurm_agents, "_ASK_S", 0.0)
    (tmp_path / "squeue").write_text("#!/bin/sh\necho 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    place, definition, _ = grid
    looks = []

    class Job:
        def done(self):
            return len(looks) >= 4

    with contextlib.closing(place.home(definition.id)) as home:
        watcher = Watcher(home)
        look = watcher.look
        monkeypatch.setattr(watcher, "look", lambda: looks.append(look()) or looks[-1])
        status = slurm_agents._watch(watcher, look(), [Job()], asks)
    assert (len(looks), status.is_done) == (expected, False)


def test_a_password_is_for_the_eyes_of_its_owner(grid, monkeypatch):
    needing_submitit()
    from sacristan.runs.sweeps.agents import slurm_agents

    place = Place(grid[0].base, Destination("mongodb://me:secret@127.0.0.1/", "db").address)
    path = slurm_agents._write_request(grid[0].base, slurm_agents.agent_request(place, "s", grid[2]))
    assert path.stat().st_mode & 0o777 == 0o600
    assert "secret" in path.read_text()
    assert "secret" not in repr(vars(slurm_agents.ArrayTask(path)))


def test_where_there_is_no_slurm_one_sentence_says_so(grid, monkeypatch):
    needing_submitit()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SweepError, match="no job can be submitted to slurm"):
        work(Engine("slurm"), grid)
    with pytest.raises(SweepError, match=r"no job can be submitted to local \(Unknown argument 'partitoin'"):
        work(Engine("slurm", slurm={"cluster": "local", "partitoin": "gpu"}), grid)


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(("extra", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_missing_extra_is_named(grid, monkeypatch, extra, package):
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError) as raised:
        work(Engine(extra), grid)
    said = f"needs the package '{package}', which is not installed; install it with: {install_command(extra)}"
    assert str(raised.value) == f"sweep.engine={extra} {said}"


REFUSED = [
    (Engine(address="auto"), "sweep.address: got 'auto' with sweep.engine=local, expected engine=ray"),
    (Engine("ray", address="head"), "sweep.address: got 'head', expected auto, HOST:6379 or ray://HOST:10001"),
    (Engine("ray", slurm={"partition": "gpu"}), "sweep.slurm: got options with sweep.engine=ray"),
    (Engine(resources={"cpus": 1}), "sweep.resources: got some with sweep.engine=local, expected engine ray or slurm"),
    (Engine("ray", resources={"gpus": "all"}), "sweep.resources.gpus: got 'all', expected a number"),
    (Engine("slurm", resources={"gpus": 0.5}), "sweep.resources.gpus: got 0.5, but Slurm shares none"),
    (Engine("slurm", resources={"disk": 1}), "sweep.resources.disk: Slurm knows cpus, gpus, memory_gb"),
    (Engine("slurm", slurm={"cluster": "pbs"}), "sweep.slurm: got the cluster 'pbs', expected one of: slurm, local"),
]


@pytest.mark.parametrize(("engine", "message"), REFUSED)
def test_what_an_engine_does_not_take_is_refused(engine, message):
    with pytest.raises(SweepError, match="^" + message.replace("(", r"\(")):
        engine.check()
