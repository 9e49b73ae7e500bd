"""Scripts of several processes: one record, of rank 0; the others log nothing, reach no server, and do not fail."""

from __future__ import annotations

import contextlib
import os
import socket
import sys

import pytest

from sacristan.runs import open_store
from tests.processes import PIPE, Process, run
from tests.ranks import started_ranks, wait_for_all

CAPTURED = """
import os
from pathlib import Path
import torch.distributed as dist
import wandb, mlflow

dist.init_process_group("gloo")
rank = dist.get_rank()
mlflow.set_tracking_uri("http://127.0.0.1:9")
wandb.init(config={"lr": 0.1})
with mlflow.start_run():
    for step in range(3):
        wandb.log({"loss": rank + step})
        mlflow.log_metric("acc", rank + step, step=step)
wandb.finish()
Path(f"rank-{rank}").touch()
dist.barrier()
dist.destroy_process_group()
"""

LOGGING = """
from pathlib import Path
import torch.distributed as dist
import wandb

dist.init_process_group("gloo")
rank = dist.get_rank()
wandb.init(config={"lr": 0.1})
for step in range(3):
    wandb.log({"loss": rank + step})
wandb.finish()
Path(f"rank-{rank}").touch()
dist.barrier()
dist.destroy_process_group()
"""

THREE_LINES = """
from pathlib import Path
import torch, torch.distributed as dist
import sacristan

dist.init_process_group("gloo")
rank = dist.get_rank()
run = sacristan.init(config={"lr": 0.1})
net = torch.nn.Linear(2, 1)
state = run.checkpoint(model=net, every=2) if CHECKPOINT else None
for step in state.steps(4) if CHECKPOINT else range(4):
    run.log({"loss": rank + step, "image": sacristan.Image(torch.zeros(2, 2))}, step)
run.config.update({"seed": 3})
run.summary["best"] = rank
run.alert("title")
run.finish()
Path(f"rank-{rank}").touch()
dist.barrier()
dist.destroy_process_group()
"""


# As scripts connect that `srun` starts, without a launcher that sets torch's variables.
OF_SRUN = """
import os, sys
import torch.distributed as dist
import wandb

rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meeting", rank=rank, world_size=size)
wandb.init(config={"lr": 0.1})
wandb.log({"loss": rank})
wandb.finish()
dist.barrier()
dist.destroy_process_group()
print("done", rank)
"""

# Independent tasks, which take another seed each.
SEEDS = """
import os, sys
import sacristan

seed = int(os.environ["SLURM_PROCID"])
run = sacristan.init(config={"seed": seed})
run.log({"loss": seed})
print("done", seed)
"""


KILLED = """
import os, signal, sys
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
import sacristan

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
data = TensorDataset(torch.randn(32, 4, generator=torch.Generator().manual_seed(1)))
sampler = DistributedSampler(data, seed=3)
torch.manual_seed(rank)  # each rank draws its own noise
run = sacristan.init(resume="auto")
state = run.checkpoint(model=net, optimizer=optimizer, loader=DataLoader(data, 4, sampler=sampler), every=3)
for epoch in state.epochs(3):
    sampler.set_epoch(epoch)
    for (inputs,) in state.loader:
        loss = net(inputs + torch.randn(inputs.shape)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss := loss.detach())
        run.log({"loss": loss.item()}, state.step)
        if state.step == 5 and len(sys.argv) > 1 and not os.path.exists("ended") and rank == int(sys.argv[2]):
            open("ended", "w").close()
            os.kill(os.getpid(), getattr(signal, sys.argv[1]))
run.finish()
dist.destroy_process_group()
"""


def losses_of(folder):
    with open_store(folder / "my_runs") as store:
        [found] = store.find()
        assert found.status == "COMPLETED"
        return found.metric("loss").steps.tolist(), found.metric("loss").values.tolist()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The losses of a loop that is not killed."""
    folder = tmp_path_factory.mktemp("whole")
    done = launch(folder, KILLED)
    assert done.returncode == 0, done.stderr
    return losses_of(folder)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "rank"), [("SIGTERM", "1"), ("SIGKILL", "0")])
def test_loop_of_two_ranks_is_resumed_to_the_same_bits(tmp_path, unbroken, name, rank):
    assert launch(tmp_path, KILLED, words=[name, rank]).returncode
    with open_store(tmp_path / "my_runs") as store:
        assert store.get(1).status == ("INTERRUPTED" if name == "SIGTERM" else "DEAD")
    done = launch(tmp_path, KILLED, words=[name, rank])
    assert done.returncode == 0, done.stderr
    assert losses_of(tmp_path) == unbroken
    assert len(unbroken[0]) == 12


@pytest.mark.slow
def test_ranks_that_are_not_connected_are_refused(tmp_path):
    text = "import sacristan, torch; sacristan.init().checkpoint(model=torch.nn.Linear(1, 1))"
    done = launch(tmp_path, text)
    assert "this process is one of 2, which are not connected; call torch.distributed.init_process_group" in done.stderr


def launch(folder, text, *before, words=()):
    (folder / "train.py").write_text(text)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torchrun = ["torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}", "--master-addr=127.0.0.1"]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    command = [sys.executable, *before, "-m", *torchrun, "train.py", *words]
    return run(command, cwd=folder, env=env, stdout=PIPE, stderr=PIPE, text=True, cold=True)


def test_only_the_first_of_two_processes_that_log_with_wandb_is_recorded(tmp_path):
    (tmp_path / "train.py").write_text(LOGGING)
    with started_ranks(["-m", "sacristan", "run", "train.py"], tmp_path) as ranks:
        ended = wait_for_all(ranks)
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert {"rank-0", "rank-1"} <= {path.name for path in tmp_path.iterdir()}
    with open_store(tmp_path / "my_runs") as store:
        [found] = store.find()
        assert (found.status, found.metric("loss").values.tolist()) == ("COMPLETED", [0, 1, 2])


def of_tasks(folder, text, before=("-m", "sacristan", "run"), environ=()):
    """Run a script as two tasks of one `srun`; return what each wrote to standard error, and the runs."""
    (folder / "train.py").write_text(text)
    step = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}
    step["MASTER_ADDR"] = "127.0.0.1"
    command = [sys.executable, *before, "train.py"]
    with contextlib.ExitStack() as stack:
        tasks = [
            stack.enter_context(
                Process(
                    command,
                    cwd=folder,
                    env={**step, "SLURM_PROCID": str(number), "SLURM_LOCALID": str(number), **dict(environ)},
                    stdout=PIPE,
                    stderr=PIPE,
                    text=True,
                )
            )
            for number in range(2)
        ]
        ended = wait_for_all(tasks)
    assert [(code, output) for code, output, _ in ended] == [(0, "done 0\n"), (0, "done 1\n")], ended
    with open_store(folder / "my_runs") as store:
        return [errors for _, _, errors in ended], store.find(sort="id")


def test_only_the_first_of_two_tasks_of_srun_is_recorded_and_says_so(tmp_path):
    errors, [found] = of_tasks(tmp_path, OF_SRUN)
    assert (found.status, found.metric("loss").values.tolist()) == ("COMPLETED", [0])
    assert found.get("meta.script.num_processes") == 2
    said = "sacristan: recording the first of 2 tasks of srun; to have a run of each, write: srun env SLURM_STEP_NUM_T"
    assert said in errors[0]
    assert "sacristan:" not in errors[1]


@pytest.mark.parametrize("before", [["-m", "sacristan", "run"], []], ids=["captured", "three lines"])
@pytest.mark.parametrize("alone", [{"MASTER_ADDR": ""}, {"SLURM_STEP_NUM_TASKS": "1"}], ids=str)
def test_tasks_of_srun_that_are_alone_by_their_environment_are_recorded_each(tmp_path, before, alone):
    errors, found = of_tasks(tmp_path, SEEDS, before, alone)
    assert sorted(run.metric("loss").values.tolist() for run in found) == [[0], [1]]
    assert "tasks of srun" not in "".join(errors)


def test_only_the_first_of_two_connected_processes_is_recorded_whatever_has_launched_them(tmp_path):
    alone = {"SLURM_STEP_NUM_TASKS": ""}
    _, [found] = of_tasks(tmp_path, OF_SRUN.replace("import wandb", "import sacristan as wandb"), (), alone)
    assert found.metric("loss").values.tolist() == [0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_only_the_first_rank_of_a_captured_script_is_recorded(tmp_path):
    pytest.importorskip("mlflow")
    done = launch(tmp_path, CAPTURED, "-m", "sacristan", "run", "--", sys.executable)
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__")
    assert names == ["my_runs", "rank-0", "rank-1", "train.py"]
    with open_store(tmp_path / "my_runs") as store:
        [found] = store.find()
        assert found.status == "COMPLETED"
        assert [found.metric(name).values.tolist() for name in ("loss", "acc")] == [[0, 1, 2], [0, 1, 2]]
    assert done.stderr.count("recording what the script logs with wandb") == 1


@pytest.mark.slow
@pytest.mark.parametrize("checkpoints", [False, True])
def test_only_the_first_rank_of_three_lines_is_recorded(tmp_path, checkpoints):
    done = launch(tmp_path, THREE_LINES.replace("CHECKPOINT", str(checkpoints)))
    assert done.returncode == 0, done.stderr
    assert {"rank-0", "rank-1"} <= {path.name for path in tmp_path.iterdir()}
    with open_store(tmp_path / "my_runs") as store:
        [found] = store.find()
        assert (found.status, found.config["seed"], found.info["summary"]["best"]) == ("COMPLETED", 3, 0)
        assert found.metric("loss").values.tolist() == [0, 1, 2, 3]
        assert len(found.media) == 4
