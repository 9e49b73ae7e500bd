"""A real Slurm of one node on this machine: preempted, cancelled, out of time, queued again; the bits of the uncut run.

apt-get install --no-install-recommends slurm-wlm munge
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from sacristan.runs import open_store
from tests.processes import PIPE, STDOUT, Process, run

ROOT = Path(__file__).parents[2]
PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
MISSING = [name for name in ("slurmctld", "slurmd", "munged", "srun") if shutil.which(name, path=PATH) is None]
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(MISSING), reason=f"Slurm is not installed: {', '.join(MISSING)}"),
]

# Jobs in `low` give way to those in `high`, after a minute of grace. Slurm lets a job wait for the credentials of the
# one before it to expire. `linuxproc` signals all processes of a job, where cgroups signal the tasks alone.
CONFIG = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=60
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=low Nodes={host} Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=120
PartitionName=high Nodes={host} MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""

# Epochs of four steps, each of which takes as many seconds as the file `pace` says; the file `hold` delays its start.
LONG = f"""
import sys, time
from pathlib import Path
(Path(__file__).parent / "starting").touch()
while (Path(__file__).parent / "hold").exists():
    time.sleep(0.05)
sys.path.insert(0, {str(ROOT)!r})
from sacristan.experiments import Experiment
from sacristan.ingredients import checkpoint, sweep
from sacristan.observers import file_observer, run_folder

ex = Experiment("long", ingredients=[checkpoint.ingredient, sweep.ingredient], system_metrics_s=None)
ex.observers.append(file_observer("my_runs"))
ex.alias(resume="checkpoint.resume")
HERE = Path(__file__).parent

@ex.config
def config():
    # learning rate
    lr = 0.1
    # passes over the data
    epochs = 100
    # the same setting as checkpoint.resume
    resume: str | None = None
    seed = 0

@ex.automain
def main(_config, _run, lr, epochs, seed):
    import torch
    from sacristan.ingredients import TensorBatches, seed_globals

    torch.set_num_threads(1)
    seed_globals(seed)
    batches = TensorBatches(torch.randn(64, 4), torch.randn(64, 1), 16, seed=seed, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    parts = {{"model": model, "optimizer": optimizer}}
    with run_folder(_run) as folder:
        keeper = checkpoint.make_checkpointer(folder, _config, run=_run)
        place = keeper.begin(parts)
        with keeper.session():
            while place.epoch < epochs:
                for inputs, targets in keeper.until_stopped(batches.epoch(place.epoch + 1, place.batch)):
                    loss = (model(inputs) - targets).square().mean()
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    place.batch += 1
                    place.step += 1
                    _run.log_scalar("train/loss", loss.item(), place.step)
                    time.sleep(float((HERE / "pace").read_text()))
                if keeper.is_stopping:
                    keeper.save(place, parts)
                place.epoch, place.batch = place.epoch + 1, 0
                # Seldom, so that a run which saved no state at its signal shows.
                keeper.save(place, parts, final=place.epoch == epochs)
    return loss.item() if place.step else None
"""


def free_ports(number):
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def wait_for(condition, what, timeout_s=300):
    until = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < until, f"waited {timeout_s} s for {what}"
        time.sleep(0.2)
    return found


class Slurm:
    """A cluster of one node, and its commands."""

    def __init__(self, folder, proctrack):
        self.folder, self.daemons = folder, []
        for name in ("state", "spool", "munge"):
            (folder / name).mkdir(mode=0o700)
        (folder / "munge" / "key").write_bytes(secrets.token_bytes(128))
        (folder / "munge" / "key").chmod(0o600)
        controller, daemon = free_ports(2)
        host = socket.gethostname().partition(".")[0]
        values = {"host": host, "controller": controller, "daemon": daemon, "user": getpass.getuser()}
        (folder / "slurm.conf").write_text(CONFIG.format(folder=folder, proctrack=proctrack, **values))
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        self.env |= {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": PATH, "OMP_NUM_THREADS": "1"}

    def start(self):
        munge = self.folder / "munge"
        files = [f"--{name}={munge / where}" for name, where in (("socket", "socket"), ("key-file", "key"))]
        files += [f"--{name}-file={munge / name}" for name in ("pid", "log", "seed")]
        self._daemon("munged", "--foreground", "--force", *files)
        wait_for((munge / "socket").exists, "munged")
        self._daemon("slurmctld", "-D", "-i")
        self._daemon("slurmd", "-D")
        wait_for(lambda: "idle" in run(["sinfo"], env=self.env, capture_output=True, text=True).stdout, "an idle node")

    def _daemon(self, *words):
        with (self.folder / f"{words[0]}.out").open("w") as out:
            self.daemons.append(Process(words, env=self.env, stdout=out, stderr=STDOUT, cwd=self.folder))

    def __call__(self, *words, check=True):
        done = run(words, env=self.env, capture_output=True, text=True)
        assert not check or not done.returncode, done.stderr
        return done.stdout.strip()

    def close(self):
        self("scancel", "--user", getpass.getuser(), "--signal=KILL", check=False)
        self("scancel", "--user", getpass.getuser(), check=False)
        with contextlib.suppress(AssertionError):
            wait_for(lambda: not self("squeue", "--noheader", check=False), "the end of all jobs", 30)
        for daemon in reversed(self.daemons):
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.close()

    def state(self, job):
        """Return the fields of a job: JobState, Restarts, ExitCode, ..."""
        return dict(re.findall(r"(\w+)=(\S*)", self("scontrol", "show", "job", "--oneliner", job)))

    def restarted(self, job, times):
        """Wait until a job has been queued again so often, and runs."""
        is_so = lambda: (found := self.state(job))["JobState"] == "RUNNING" and int(found["Restarts"]) >= times  # noqa: E731
        wait_for(is_so, f"restart {times} of job {job}")

    def run_out_of_time(self, job, times):
        """Let the time limit of a running job come within a minute; once it is queued again, and runs, it has 10."""
        hours, minutes, _ = self.state(job)["RunTime"].split(":")
        self("scontrol", "update", f"JobId={job}", f"TimeLimit={60 * int(hours) + int(minutes) + 1}")
        self.restarted(job, times)
        self("scontrol", "update", f"JobId={job}", "TimeLimit=10")

    def preempt(self):
        """Take all of the node, and give it back; the jobs that had it are about to be queued again by then."""
        self("srun", "--partition=high", "--ntasks=4", "true")

    @contextlib.contextmanager
    def preempting(self, job):
        """Run the block while a job has its grace time, or after it if the job ends at once; give the node back."""
        restarts = self.state(job)["Restarts"]

        def is_preempted():
            state = self.state(job)
            return state.get("PreemptTime", "None") != "None" or state["Restarts"] != restarts

        with Process(["srun", "--partition=high", "--ntasks=4", "true"], env=self.env) as taking:
            wait_for(is_preempted, f"the preemption of job {job}")
            yield
            assert taking.wait(120) == 0


@pytest.fixture(scope="module", params=["linuxproc", "pgid"])
def slurm(request, tmp_path_factory):
    made = Slurm(tmp_path_factory.mktemp("slurm"), request.param)
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def long(tmp_path, slurm):
    (tmp_path / "long.py").write_text(LONG)
    (tmp_path / "pace").write_text("0.25")
    yield tmp_path
    slurm("scancel", "--user", getpass.getuser(), check=False)
    wait_for(lambda: not slurm("squeue", "--noheader"), "the end of all jobs", 90)


def losses(folder):
    """Return the steps and losses of the completed runs of a folder, by learning rate; each was completed once."""
    with open_store(folder) as store:
        completed = [one for one in store.find() if one.status == "COMPLETED"]
        series = [one.metric("train/loss") for one in completed]
        found = {
            one.config.lr: (list(each.steps), list(each.values)) for one, each in zip(completed, series, strict=True)
        }
    assert len(found) == len(completed)
    return found


def check_uncut(folder, slurm, *words):
    """Compare the completed runs of a folder with those that nothing cuts, and return their learning rates."""
    cut = losses(folder / "my_runs")
    for lr, points in cut.items():
        place = folder / "uncut" / str(lr)
        place.mkdir(parents=True)
        (place / "pace").write_text("0")
        (place / "long.py").write_text(LONG)
        done = run([sys.executable, "long.py", "with", *words, f"lr={lr}"], cwd=place, env=slurm.env)
        assert done.returncode == 0
        assert losses(place / "my_runs") == {lr: points}
    return sorted(cut)


def saved_steps(folder):
    """Return the steps that the runs of a folder have logged, and those of their newest states."""
    with open_store(folder / "my_runs") as store:
        logged = [int(one.metric("train/loss").steps[-1]) for one in store.find(sort="start")]
        states = [one.folder / "checkpoints" / "last.pt" for one in store.find(sort="start")]
    return logged, [torch.load(state, weights_only=True)["step"] for state in states]


def hold(folder):
    """Let the next processes of the long training wait before they import anything."""
    (folder / "starting").unlink()
    (folder / "hold").touch()


def starting(folder):
    """Wait until such a process has started, and let the next one be waited for as well."""
    wait_for((folder / "starting").exists, "the start of the training")
    (folder / "starting").unlink()


def sweeping(slurm, folder, *words, values="[0.1, 0.2]", options="timeout_min: 10"):
    over = f"sweep.over={{lr: {values}}}"
    fixed = (
        "sweep.metric=train/loss",
        "sweep.id=s",
        "sweep.engine=slurm",
        f"sweep.slurm={{partition: low, {options}}}",
    )
    pytest.importorskip("submitit", reason="submitit is not installed: the extra slurm")
    command = [sys.executable, "long.py", "sweep.run", "with", over, *fixed, *words]
    return Process(command, cwd=folder, env=slurm.env, stdout=PIPE, stderr=STDOUT, text=True)


def job_of(sweep):
    """Return the number of the job that a sweep submits."""
    said = []
    for line in sweep.stdout:
        if found := re.search(r"job (\d+): agents are queued", line):
            return found[1]
        said.append(line)
    raise AssertionError(f"no job was submitted: {''.join(said)}")


def training(folder, number, step=4):
    """Wait until so many runs of a folder train, and have logged some steps."""

    def is_so():
        with contextlib.suppress(Exception), open_store(folder / "my_runs") as store:
            running = [one for one in store.find() if one.status == "RUNNING"]
            return len(running) >= number and all(len(one.metric("train/loss").steps) >= step for one in running)

    wait_for(is_so, "steps")


def training_further(folder):
    """Wait until the run of a folder trains beyond its newest state, if it has one."""

    def is_so():
        with contextlib.suppress(Exception), open_store(folder / "my_runs") as store:
            (one,) = store.find()
            state = one.folder / "checkpoints" / "last.pt"
            saved = torch.load(state, weights_only=True)["step"] if state.exists() else 0
            return one.status == "RUNNING" and one.metric("train/loss").steps[-1] > saved

    wait_for(is_so, "a step")


# ---------------------------------------------------------------------- sweeps


def test_agents_that_are_preempted_within_a_grace_time_save_and_are_queued_again(slurm, long):
    with sweeping(slurm, long, "sweep.workers=2") as sweep:
        job = job_of(sweep)
        training(long, 2)
        slurm.preempt()
        with open_store(long / "my_runs") as store:
            found = store.find()
        assert [one.status for one in found] == ["INTERRUPTED", "INTERRUPTED"]
        assert {one["meta.interrupted_by"] for one in found} == {"SIGTERM"}
        logged, saved = saved_steps(long)
        assert logged == saved
        for task in (0, 1):
            slurm.restarted(f"{job}_{task}", 1)
        (long / "pace").write_text("0")
        said = sweep.stdout.read()
        assert sweep.wait() == 0, said
    assert check_uncut(long, slurm) == [0.1, 0.2]


def test_an_agent_is_queued_again_at_each_of_five_time_limits(slurm, long):
    # Steps of a second make it longer than five limits. submitit counts an end as that of a limit of ten minutes.
    (long / "pace").write_text("1")
    with sweeping(slurm, long, "epochs=500", values="[0.1]", options="timeout_min: 10, signal_delay_s: 20") as sweep:
        job = job_of(sweep)
        for times in range(1, 6):
            training_further(long)
            slurm.run_out_of_time(job, times)
        training_further(long)
        (long / "pace").write_text("0")
        said = sweep.stdout.read()
        assert sweep.wait() == 0, said
    assert check_uncut(long, slurm, "epochs=500") == [0.1]
    with open_store(long / "my_runs") as store:
        (found,) = store.find()
    assert [one["status"] for one in found.sessions] == ["INTERRUPTED"] * 5 + ["COMPLETED"]


def test_an_agent_that_is_preempted_while_it_starts_is_queued_again(slurm, long):
    waiting = LONG.partition("sys.path")[0].replace('"hold"', '"hold-task"').replace('"starting"', '"starting-task"')
    (long / "sitecustomize.py").write_text(waiting)
    (long / "hold-task").touch()
    (long / "pace").write_text("0")
    setup = f"export PYTHONPATH={long}:$PYTHONPATH"
    with sweeping(slurm, long, values="[0.1]", options=f"timeout_min: 10, setup: ['{setup}']") as sweep:
        job = job_of(sweep)
        wait_for((long / "starting-task").exists, "the start of the task")
        with slurm.preempting(job):
            (long / "hold-task").unlink()
        said = sweep.stdout.read()
        assert sweep.wait() == 0, said
    assert slurm.state(job)["Restarts"] == "1"
    assert check_uncut(long, slurm) == [0.1]


def test_a_cancelled_array_saves_its_states_and_stays_away(slurm, long):
    with sweeping(slurm, long, "sweep.workers=2") as sweep:
        job = job_of(sweep)
        training(long, 2)
        slurm("scancel", job)
        said = sweep.stdout.read()
        assert sweep.wait() == 1, said
        assert "has ended with points left" in said
    wait_for(lambda: slurm.state(f"{job}_0")["JobState"] == "CANCELLED", "the end of the job")
    with open_store(long / "my_runs") as store:
        assert {one.status for one in store.find()} == {"INTERRUPTED"}
    logged, saved = saved_steps(long)
    assert logged == saved
    with sweeping(slurm, long, "sweep.workers=2") as sweep:
        (long / "pace").write_text("0")
        said = sweep.stdout.read()
        assert sweep.wait() == 0, said
    assert check_uncut(long, slurm) == [0.1, 0.2]


# ---------------------------------------------------------------------- a job of its own


PAGES = ["howto/resume_on_slurm.md", "resuming.md"]


def submit(slurm, folder, page):
    """Submit the script of a page for the long training, and return the number of the job."""
    blocks = re.findall(r"^```bash\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)
    (block,) = [block for block in blocks if "#SBATCH" in block]
    script = re.sub(r"python exp\.py with epochs=\d+", f"{sys.executable} long.py with", block)
    assert script != block
    (folder / "job.sh").write_text(script)
    words = ("--parsable", "--partition=low", f"--chdir={folder}", "--output=job.txt", "job.sh")
    done = run(["sbatch", *words], cwd=folder, env=slurm.env, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("page", PAGES)
def test_the_script_of_the_docs_goes_on_whenever_the_signal_comes(slurm, long, page):
    job = submit(slurm, long, page)
    training(long, 1)
    hold(long)
    slurm("scancel", "--signal=USR1", job)
    starting(long)
    slurm("scancel", "--signal=USR1", job)
    slurm.restarted(job, 2)
    starting(long)
    with slurm.preempting(job):
        pass
    slurm.restarted(job, 3)
    (long / "hold").unlink()
    training(long, 1)
    slurm.preempt()
    logged, saved = saved_steps(long)
    assert logged == saved
    slurm.restarted(job, 4)
    (long / "pace").write_text("0")
    wait_for(lambda: slurm.state(job)["JobState"] == "COMPLETED", "the end of the training")
    assert check_uncut(long, slurm, *(["seed=1"] if page == "resuming.md" else [])) == [0.1]


def test_a_job_without_a_warning_goes_on_after_its_time_limit(slurm, long):
    script = f"srun {sys.executable} long.py with epochs=500 resume=auto checkpoint.requeue=True"
    job = slurm("sbatch", "--parsable", "--partition=low", "--time=10", f"--chdir={long}", "--wrap", script)
    training_further(long)
    slurm.run_out_of_time(job, 1)
    (long / "pace").write_text("0")
    wait_for(lambda: slurm.state(job)["JobState"] == "COMPLETED", "the end of the training")
    assert check_uncut(long, slurm, "epochs=500") == [0.1]
    with open_store(long / "my_runs") as store:
        (found,) = store.find()
    assert [one["status"] for one in found.sessions] == ["INTERRUPTED", "COMPLETED"]


@pytest.mark.parametrize("page", PAGES)
def test_a_cancelled_job_saves_its_state_and_stays_away(slurm, long, page):
    job = submit(slurm, long, page)
    training(long, 1)
    slurm("scancel", job)
    wait_for(lambda: slurm.state(job)["JobState"] == "CANCELLED", "the end of the job")
    logged, saved = saved_steps(long)
    assert logged == saved
    assert slurm.state(job)["Restarts"] == "0"


# ---------------------------------------------------------------------- several tasks


TRAINING = ("data.fast", "epochs=3", "data.batch_size=32", "checkpoint.interval_steps=1", "model.options.dropout=0.1")


@pytest.fixture
def lab(tmp_path, slurm):
    head = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
    (tmp_path / "exp.py").write_text(head + (ROOT / "exp.py").read_text())
    return tmp_path


def in_step(slurm, folder, *words):
    command = ["srun", "--partition=low", "--ntasks=2", sys.executable, *words]
    done = run(command, cwd=folder, env=slurm.env, stdout=PIPE, stderr=STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


def curve(folder):
    with open_store(folder) as store:
        (found,) = store.find()
        assert (found.status, [rank.rank for rank in found.info.ranks]) == ("COMPLETED", [0, 1])
        return list(found.metric("train/loss").values)


def test_tasks_of_srun_train_one_run_together_as_ranks_of_torchrun_do(slurm, lab):
    in_step(slurm, lab, "exp.py", "with", *TRAINING)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *torchrun, "exp.py", "with", *TRAINING, "-F", "other"]
    done = run(command, cwd=lab, env=slurm.env, stdout=PIPE, stderr=STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    assert curve(lab / "my_runs") == curve(lab / "other")


def test_tasks_whose_settings_differ_learn_how_to_have_separate_runs(slurm, lab):
    (lab / "each.sh").write_text(f"exec $WITH {sys.executable} exp.py with epochs=1 data.fast seed=$SLURM_PROCID\n")
    command = ["srun", "--partition=low", "--ntasks=2", "sh", "each.sh"]
    done = run(command, cwd=lab, env={**slurm.env, "WITH": ""}, stdout=PIPE, stderr=STDOUT, text=True)
    assert done.returncode
    assert "have different configs: seed=1 and 0" in done.stdout
    assert "to have a run of each task of srun, start them with: env SLURM_STEP_NUM_TASKS=1" in done.stdout
    done = run(
        command, cwd=lab, env={**slurm.env, "WITH": "env SLURM_STEP_NUM_TASKS=1"}, stdout=PIPE, stderr=STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    with open_store(lab / "my_runs") as store:
        assert sorted(one.config.seed for one in store.find("status=COMPLETED")) == [0, 1]


def test_tasks_of_an_experiment_without_ranks_are_separate_runs(slurm, long):
    (long / "pace").write_text("0")
    said = in_step(slurm, long, "long.py", "with", "epochs=1")
    assert "task 1 of 2 of srun: long has no ingredient distributed, so each task is a run of its own" in said
    with open_store(long / "my_runs") as store:
        assert [one.status for one in store.find()] == ["COMPLETED", "COMPLETED"]


CONNECTING = """
import os
import torch.distributed as dist
import sacristan

rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_STEP_NUM_TASKS"])
if size > 1:
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meeting", rank=rank, world_size=size)
run = sacristan.init()
run.log({"loss": rank})
if size > 1:
    dist.barrier()
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("before", [["-m", "sacristan", "run"], []], ids=["captured", "three lines"])
def test_tasks_of_a_script_are_one_run_or_a_run_each(slurm, lab, before):
    (lab / "train.py").write_text(CONNECTING)
    env = {**slurm.env, "MASTER_ADDR": "127.0.0.1"}
    step = ["srun", "--partition=low", "--ntasks=2"]
    done = run([*step, sys.executable, *before, "train.py"], cwd=lab, env=env, stdout=PIPE, stderr=STDOUT, text=True)
    assert "recording the first of 2 tasks of srun" in done.stdout
    alone = [*step, "env", "SLURM_STEP_NUM_TASKS=1", sys.executable, *before, "train.py"]
    done = run(alone, cwd=lab, env=env, stdout=PIPE, stderr=STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    with open_store(lab / "my_runs") as store:
        values = [run.metric("loss").values.tolist() for run in store.find(sort="id")]
    assert (values[0], sorted(values[1:])) == ([0], [[0], [1]])


def test_agents_of_a_sweep_are_no_ranks(slurm, lab):
    over = "sweep.over={lr: [1e-4, 1e-3, 1e-2, 1e-1]}"
    in_step(slurm, lab, "exp.py", "sweep.run", "with", over, "sweep.id=s", "data.fast", "epochs=1")
    with open_store(lab / "my_runs") as store:
        found = store.find("meta.sweep.id=s")
        assert sorted(one["meta.sweep.trial"] for one in found) == [0, 1, 2, 3]
        assert {(one.status, one.info.get("ranks")) for one in found} == {("COMPLETED", None)}


def test_ranks_of_srun_that_are_warned_resume_together(slurm, lab):
    (lab / "uncut").mkdir()
    (lab / "uncut" / "exp.py").write_text((lab / "exp.py").read_text())
    many = [word.replace("epochs=3", "epochs=200") for word in TRAINING]
    in_step(slurm, lab / "uncut", "exp.py", "with", *many)
    script = f"srun {sys.executable} exp.py with {' '.join(many)} resume=auto checkpoint.requeue=True"
    words = ("--parsable", "--partition=low", "--ntasks=2", "--output=job.txt", "--open-mode=append", "--wrap", script)
    done = run(["sbatch", *words], cwd=lab, env=slurm.env, capture_output=True, text=True)
    job = done.stdout.strip()
    training(lab, 1)
    slurm("scancel", "--signal=USR1", job)
    wait_for(lambda: slurm.state(job)["JobState"] == "COMPLETED", "the end of the training")
    assert slurm.state(job)["Restarts"] == "1"
    with open_store(lab / "my_runs") as store:
        (found,) = store.find()
        assert len(found.sessions) == 2
    assert curve(lab / "my_runs") == curve(lab / "uncut" / "my_runs")
