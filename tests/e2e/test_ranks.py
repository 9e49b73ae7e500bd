"""Trainings by two processes: the same as by one, in one record, and ended truthfully when one of them dies."""

import contextlib
import json
import os
import random
import re
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
import torch

from sacristan.observers import read_metrics
from sacristan.runs import open_store
from sacristan.runs.rerun.resuming import resume_launch
from tests.processes import PIPE, Process, launcher, run
from tests.ranks import started_ranks, wait_for_all, write_experiment

LAB = Path(__file__).resolve().parents[2]
SMALL = ["with", "training.epochs=2", "data.limit=305", "training.log_interval=1", "checkpoint.interval_steps=2"]
# The last batch of an epoch is a small one, and odd.
WHOLE = [*SMALL, "seed=1", "data.batch_size=20", "amp.accumulate=2", "amp.clip_norm=1.0", "metrics.use.f1=F1Score"]
DROPPING = [*SMALL, "seed=1", "data.batch_size=32", "model.options.dropout=0.3"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Yield a folder with the experiment, whose processes find the lab."""
    folder = tmp_path_factory.mktemp("ranks")
    write_experiment(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(LAB))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield folder


def train(lab, name, words, fault="", own=((), ())):
    """Train by two ranks, recorded in a folder of its own or by `-m`; return that run, and how each rank ended."""
    words = ["ranked.py", *words, *(() if "-m" in words else ("-F", name))]
    with started_ranks(words, lab, environ={"FAULT": fault} if fault else {}, own=own) as ranks:
        ended = wait_for_all(ranks)
    return None if "-m" in words else newest(lab / name), ended


def newest(where):
    with open_store(where) as store:
        found = store.find()
        return found[0] if found else None


def last_state(lab, name):
    return torch.load(lab / name / "1" / "checkpoints" / "last.pt", weights_only=True)


@pytest.fixture(scope="module")
def alone(lab):
    done = run([sys.executable, "ranked.py", *WHOLE, "-F", "alone"], cwd=lab, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return newest(lab / "alone")


@pytest.fixture(scope="module")
def together(lab):
    found, ended = train(lab, "together", WHOLE)
    assert [code for code, _, _ in ended] == [0, 0], ended
    return found, ended


@pytest.fixture(scope="module")
def unbroken(lab):
    train(lab, "unbroken", DROPPING)
    return last_state(lab, "unbroken")


def assert_same_bits(state, unbroken):
    assert (state["step"], state["epoch"]) == (unbroken["step"], unbroken["epoch"])
    for name, weights in unbroken["model"].items():
        assert torch.equal(state["model"][name], weights)
    for mine, other in zip(state["ranks"], unbroken["ranks"], strict=True):
        assert torch.equal(mine["streams"]["torch"], other["streams"]["torch"])


# The same as one process


def test_two_processes_end_with_the_weights_of_one(lab, alone, together):
    mine, other = last_state(lab, "alone"), last_state(lab, "together")
    assert mine["step"] == other["step"] == 12
    for name, weights in mine["model"].items():
        torch.testing.assert_close(other["model"][name], weights, rtol=1e-4, atol=1e-6)


def test_two_processes_log_the_values_of_whole_batches(lab, alone, together):
    mine, other = (read_metrics(lab / name / "1") for name in ("alone", "together"))
    names = [name for name in mine if not name.startswith("system/")]
    assert {"train/loss", "train/grad_norm", "val/loss", "val/accuracy", "val/f1"} <= set(names)
    for name in names:
        assert mine[name].steps.tolist() == other[name].steps.tolist()
        assert other[name].values.tolist() == pytest.approx(mine[name].values.tolist(), rel=1e-4)


def test_two_processes_evaluate_and_predict_each_sample_once(alone, together):
    found, _ = together
    assert found.info.test.to_dict() == pytest.approx(alone.info.test.to_dict(), rel=1e-4)
    assert len(found.info.predicted) == 46
    assert found.info.predicted == alone.info.predicted


@pytest.mark.slow
def test_one_process_goes_on_from_the_state_of_two(lab, together):
    start = lab / "together" / "1" / "checkpoints" / "last.pt"
    words = [*WHOLE, "training.epochs=3", f"checkpoint.resume={start}", "-F", "further"]
    words.remove("training.epochs=2")
    done = run([sys.executable, "ranked.py", *words], cwd=lab, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert last_state(lab, "further")["step"] == 18


# One record


def test_record_lists_ranks_and_what_each_printed(lab, together):
    found, ended = together
    assert [os.fspath(path.name) for path in (lab / "together").glob("[0-9]*")] == ["1"]
    assert found.status == "COMPLETED"
    assert [(rank.rank, rank.device) for rank in found.info.ranks] == [(0, "cpu"), (1, "cpu")]
    assert len({rank.pid for rank in found.info.ranks}) == 2
    assert found["meta.ranks.size"] == 2
    assert "hello from 0" in found.output
    assert "hello from 1" not in found.output
    assert list(found.rank_outputs) == [1]
    assert b"hello from 1" in found.rank_outputs[1].read()
    assert "hello" not in ended[1][1]


def test_runs_show_the_ranks_and_the_output_of_one(lab, together):
    def typed(*words):
        done = run(
            [sys.executable, "-m", "sacristan", "--store", "together", *words], cwd=lab, capture_output=True, text=True
        )
        return done.returncode, done.stdout + done.stderr

    assert "ranks" in typed("show", "1")[1]
    code, output = typed("log", "1", "--rank", "1")
    assert code == 0
    assert "hello from 1" in output
    assert typed("log", "1", "--rank", "2") == (1, "error: run 1: got --rank 2, but there are: 1\n")


# Ranks that differ


def test_ranks_with_different_configs_are_refused(lab):
    found, ended = train(lab, "different", SMALL, own=((), ("optimizer.lr=0.5", "seed=7")))
    assert ended[1][0] == 1
    assert (
        "rank 1: error: rank 1 and rank 0 have different configs: optimizer.lr=0.5 and 0.001, seed=7 and "
        in ended[1][2]
    )
    assert ended[0][0] == 1
    assert found.status == "FAILED"
    assert "failed: ConfigError: rank 1 and rank 0 have different configs" in found["fail_trace"][-1]


# Ranks that die


@pytest.mark.slow
def test_a_rank_that_fails_ends_all_with_its_number_and_reason_in_a_database_too(lab, mongo_url, database):
    # Without a seed, the ranks take the one that Sacred draws for rank 0.
    # Workers of a loader do not keep a rank that has failed.
    url = f"{mongo_url}/{database.name}"
    words = [*SMALL, "data.in_memory=False", "data.num_workers=1", "-m", url]
    _, ended = train(lab, "failed", words, "1:5:raise")
    assert [code for code, _, _ in ended] == [1, 1]
    with open_store(url) as store:
        (found,) = store.find()
        assert found.status == "FAILED"
        pid = found.info.ranks[1].pid
        assert f"rank 1 (pid {pid} on {found.host}) failed: ValueError: boom" in found["fail_trace"][-1]
        assert b"ValueError: boom" in found.rank_outputs[1].read()
    assert "wait timeout" not in ended[0][2]  # of Sacred, for output that a worker holds open


@pytest.mark.slow
def test_a_full_disk_of_rank_0_ends_all_with_the_reason(lab):
    found, ended = train(lab, "full", DROPPING, "0:3:full")
    assert [code for code, _, _ in ended] == [1, 1]
    assert found.status == "FAILED"
    assert "cannot be written" in found["fail_trace"][-1]
    assert re.search(r"rank 1: error: rank 0 \(pid \d+ on .*\) failed: .* cannot be written", ended[1][2])


def test_weights_that_drift_apart_end_the_run_before_a_state_of_them_is_saved(lab):
    found, ended = train(lab, "drift", DROPPING, "1:3:drift")
    assert [code for code, _, _ in ended] == [1, 1]
    assert found.status == "FAILED"
    assert "the weights of ranks 0 and 1 differ after step 4, first in " in found["fail_trace"][-1]
    assert last_state(lab, "drift")["step"] == 2


@pytest.fixture
def full_disk(lab):
    """A full disk of its own, in the folder `disk`; skips a test that may not mount one."""
    folder = lab / "disk"
    folder.mkdir()
    if run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True).returncode:
        pytest.skip("a disk of its own can be mounted by root only")
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as stream:
        while stream.write(bytes(4096)):
            pass
    yield folder
    run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_is_full_from_the_start_is_one_error_of_each_rank(lab, full_disk):
    words = ["ranked.py", *DROPPING, "-F", "disk/runs"]
    with started_ranks(words, lab) as ranks:
        ended = wait_for_all(ranks)
    assert [code for code, _, _ in ended] == [1, 1]
    for (_, _, errors), wanted in zip(ended, ("error: disk/runs", "rank 1: error: rank 0 (pid"), strict=True):
        assert "Traceback" not in errors, errors
        error = next((line for line in errors.splitlines() if line.startswith(wanted)), errors)
        assert error.startswith(wanted)
        assert "cannot be written: [Errno 28] No space left on device" in error
    assert "of output could not be written and are lost (No space left on device)" in ended[1][2]


@pytest.mark.slow
def test_a_killed_rank_ends_all_and_the_run_resumes_with_the_same_bits(lab, unbroken):
    found, ended = train(lab, "killed", DROPPING, "1:5:SIGKILL")
    assert [code for code, _, _ in ended] == [1, -signal.SIGKILL]
    assert found.status == "FAILED"
    assert "is gone without a word" in found["fail_trace"][-1]
    assert last_state(lab, "killed")["step"] == 4

    # As `sacristan resume` starts it.
    launch = resume_launch(found)
    done = run(launch.command, cwd=launch.cwd, env=launch.environ(), capture_output=True, text=True, starts_python=True)
    assert done.returncode == 0, done.stderr
    found = newest(lab / "killed")
    assert found.status == "COMPLETED"
    assert [session["status"] for session in found.sessions] == ["FAILED", "COMPLETED"]
    assert_same_bits(last_state(lab, "killed"), unbroken)


def test_a_rank_that_native_code_aborts_is_reported_with_its_signal_and_last_words(lab):
    words = [*DROPPING, "checkpoint.resume=auto"]
    found, ended = train(lab, "aborted", words, "1:5:terminate")
    assert [code for code, _, _ in ended] == [1, -signal.SIGABRT]
    assert re.search(
        r"rank 1 \(pid \d+ on .*\) was ended by SIGABRT, raised by native code such as torch's: .*"
        r"terminate called without an active exception; its traceback is in .*ranks/1\.txt; resume the run",
        found["fail_trace"][-1],
    )
    assert b"in after_step" in found.rank_outputs[1].read()
    # A later session does not take them for its own.
    found, ended = train(lab, "aborted", words, "1:7:SIGKILL")
    assert len(found.sessions) == 2
    assert "is gone without a word" in found["fail_trace"][-1]
    assert "its last output is in " in found["fail_trace"][-1]


def test_a_signal_to_one_rank_ends_all_with_a_state_saved(lab):
    # Within the epoch, where no other state is due.
    words = [word for word in DROPPING if not word.startswith("checkpoint.")]
    found, ended = train(lab, "signalled", words, "1:5:SIGTERM")
    assert [code for code, _, _ in ended] == [75, 75]
    assert (found.status, found["meta.interrupted_by"]) == ("INTERRUPTED", "SIGTERM")
    assert last_state(lab, "signalled")["step"] == 6


def test_a_signal_to_all_processes_of_a_job_spares_the_workers_of_loaders(lab):
    words = [*DROPPING, "data.in_memory=False", "data.num_workers=1", "training.epochs=100000", "-F", "loading"]
    words.remove("training.epochs=2")
    last = lab / "loading" / "1" / "checkpoints" / "last.pt"
    with started_ranks(["ranked.py", *words], lab) as ranks:
        await_file(last, ranks[0])
        # As a scheduler does, and torchrun once more.
        for pid in [pid for _ in range(2) for rank in ranks for pid in (*children_of(rank.pid), rank.pid)]:
            os.kill(pid, signal.SIGTERM)
        ended = wait_for_all(ranks)
    assert [code for code, _, _ in ended] == [75, 75], ended
    found = newest(lab / "loading")
    assert (found.status, found["meta.interrupted_by"]) == ("INTERRUPTED", "SIGTERM")


def children_of(pid):
    return map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def await_file(path, process):
    until = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)


# torchrun


def torchrun(*words, num=2):
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num}", *words]


@pytest.mark.slow
def test_torchrun_starts_ranks_anew_and_the_run_resumes_in_its_record(lab, unbroken):
    # Rank 0 dies itself, with the record in its hands.
    command = torchrun("--max-restarts=1", "ranked.py", *DROPPING, "-F", "restarted")
    environ = {**os.environ, "FAULT": "0:5:SIGKILL"}
    done = run(command, cwd=lab, env=environ, capture_output=True, text=True, starts_python=True)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (lab / "restarted").glob("[0-9]*")] == ["1"]
    found = newest(lab / "restarted")
    assert found.status == "COMPLETED"
    assert len(found.sessions) == 2
    assert_same_bits(last_state(lab, "restarted"), unbroken)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("num", [2, 3, 4])
def test_ranks_that_are_killed_at_random_end_with_the_bits_of_an_uncut_run(lab, num):
    seed = time.time_ns()
    chance = random.Random(seed)
    changed = {"training.epochs=2": "training.epochs=100", "data.batch_size=32": "data.batch_size=36"}
    words = ["ranked.py", *(changed.get(word, word) for word in DROPPING), "-F"]
    with started_ranks([*words, f"uncut_{num}"], lab, num, own=[()] * num) as ranks:
        ended = wait_for_all(ranks, timeout_s=600)
        assert [code for code, _, _ in ended] == [0] * num, ended
    command, name = torchrun("--max-restarts=5", *words, f"killed_{num}", num=num), f"killed_{num}"
    last = lab / name / "1" / "checkpoints" / "last.pt"
    with Process(command, cwd=lab, stdout=PIPE, stderr=PIPE, text=True, cold=True) as process:
        await_file(last, process)
        for step in sorted(chance.sample(range(4, 500), 4)):
            further = last_state(lab, name)["step"] + 1  # which the session after the last kill takes
            while last_state(lab, name)["step"] < max(step, further):
                assert process.poll() is None, process.communicate()
                time.sleep(0.01)
            victims = list(children_of(process.pid))
            os.kill(chance.choice(victims), signal.SIGKILL)
            wait_until_gone(victims)
        _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, (seed, errors)
    found = newest(lab / name)
    assert (found.status, len(found.sessions)) == ("COMPLETED", 5), seed
    assert_same_bits(last_state(lab, name), last_state(lab, f"uncut_{num}"))


def wait_until_gone(pids):
    until = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < until
        time.sleep(0.01)


@contextlib.contextmanager
def two_nodes(lab, *words, **environ):
    """Start `torchrun` twice, as on two nodes that share a folder, each with one rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--max-restarts=3"]
    command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=nodes", *words]
    options = {"cwd": lab, "env": {**os.environ, **environ}, "stderr": PIPE, "text": True, "starts_python": True}
    with Process(command, **options) as one, Process(command, **options) as other:
        yield one, other


@pytest.mark.nightly
def test_ranks_of_two_nodes_are_started_anew_and_the_run_resumes_in_its_record(lab, unbroken):
    with two_nodes(lab, "ranked.py", *DROPPING, "-F", "nodes", FAULT="0:5:SIGKILL") as nodes:
        ended = [node.communicate(timeout=200)[1] for node in nodes]
        assert [node.returncode for node in nodes] == [0, 0], ended
    assert [path.name for path in (lab / "nodes").glob("[0-9]*")] == ["1"]
    found = newest(lab / "nodes")
    assert found.status == "COMPLETED"
    assert len(found.sessions) >= 2
    assert_same_bits(last_state(lab, "nodes"), unbroken)


@pytest.mark.nightly
@pytest.mark.parametrize("num_interrupted", [1, 2])
def test_ctrl_c_at_a_node_after_a_restart_ends_the_run_as_interrupted(lab, num_interrupted):
    words = ["ranked.py", *DROPPING, "training.epochs=100000", "-F", f"interrupted_nodes_{num_interrupted}"]
    words.remove("training.epochs=2")
    where = lab / words[-1]
    with two_nodes(lab, *words, FAULT="0:5:SIGKILL") as nodes:
        deadline = time.monotonic() + 100
        last = where / "1" / "checkpoints" / "last.pt"
        while not last.exists() or torch.load(last, weights_only=True)["step"] < 10:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for node in nodes[:num_interrupted]:
            node.send_signal(signal.SIGINT)
        for node in nodes[:num_interrupted]:
            node.communicate(timeout=100)
            assert node.returncode not in (0, None)
        found = newest(where)
        assert (found.status, found["meta.interrupted_by"], len(found.sessions)) == ("INTERRUPTED", "SIGINT", 2)


# What Slurm and its users bring along; ranks are warm, as others here.
STAND_INS = {
    "srun": '#!/bin/sh\nexec "$@"\n',
    "scontrol": '#!/bin/sh\ntest "$*" = "show hostnames one" && echo 127.0.0.1\n',
}


@pytest.mark.slow
def test_the_script_for_slurm_trains_by_all_processes_of_a_node(tmp_path):
    (block,) = re.findall(r"^```bash\n(.*?)^```", (LAB / "docs" / "devices.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "job.sh").write_text(block)
    assert run(["bash", "-n", "job.sh"], cwd=tmp_path).returncode == 0
    environ = {**os.environ, **launcher(tmp_path / "bin"), "PYTHONPATH": str(LAB), "OMP_NUM_THREADS": "1"}
    start = '[sys.executable, "-m", "torch.distributed.run", *sys.argv[1:]], starts_python=True'
    torchrun = (tmp_path / "bin" / "python").read_text().replace("[sys.executable, *[], *sys.argv[1:]]", start)
    for name, text in {**STAND_INS, "torchrun": torchrun}.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    short = "supervised.compose(ex)\nex.add_config(training={'epochs': 2})\n"
    (tmp_path / "exp.py").write_text((LAB / "exp.py").read_text().replace("supervised.compose(ex)\n", short))
    environ |= {"SLURM_NNODES": "1", "SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_NODELIST": "one"}
    environ |= {"SLURM_JOB_ID": str(free_port_of_job()), "CUDA_VISIBLE_DEVICES": ""}
    done = run(["bash", "job.sh"], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "recorded in no folder" not in done.stderr  # which rank 1 is not
    found = newest(tmp_path / "my_runs")
    assert (found.status, found.config.checkpoint.interval_steps, found.config.data.batch_size) == (
        "COMPLETED",
        500,
        512,
    )
    assert [rank.rank for rank in found.info.ranks] == [0, 1]


def free_port_of_job():
    """Return the number of a job whose port nobody has taken."""
    while True:
        number = random.randrange(10_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", 20_000 + number))
            return number


@pytest.mark.slow
def test_ctrl_c_ends_all_as_interrupted_with_a_state_saved(lab):
    words = ["ranked.py", *DROPPING, "training.epochs=100000", "-F", "interrupted"]
    words.remove("training.epochs=2")
    last = lab / "interrupted" / "1" / "checkpoints" / "last.pt"
    with Process(torchrun(*words), cwd=lab, stdout=PIPE, stderr=PIPE, text=True, starts_python=True) as process:
        await_file(last, process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode not in (0, None)
    found = newest(lab / "interrupted")
    assert (found.status, found["meta.interrupted_by"]) == ("INTERRUPTED", "SIGINT"), errors
    assert "is saved; resume with" in errors
    lease = json.loads((lab / "interrupted" / "1" / "lease.json").read_text())
    assert not Path(f"/proc/{lease['pid']}").exists()
