"""`sacristan reproduce` and `resume` of scripts, which `sacristan run` or `sacristan.init` recorded."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from sacristan.runs import open_store
from tests.processes import DEVNULL, PIPE, run

# Draws its losses from a seed, a file beside it, and a module of its own.
SCRIPT = """
import argparse
import random
from pathlib import Path

START
import sacristan
from model import step

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--seed", type=int)
args = parser.parse_args()
stream, loss = random.Random(args.seed), 1.0
for seed in range(RUNS):
    run = sacristan.init(config=vars(args))
    for number in range(5):
        loss = step(loss, args.lr * float(Path("factor.txt").read_text()), stream.random())
        run.log({"loss": loss + seed}, number)
    run.finish()
"""
MODEL = "def step(loss, lr, noise):\n    return loss - lr * noise\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("SACRISTAN_STORE", "SACRISTAN_MODE"):
        monkeypatch.delenv(name, raising=False)
    write(tmp_path)
    return tmp_path


def write(folder, start="", runs=1, script="train.py"):
    (folder / script).parent.mkdir(exist_ok=True)
    (folder / script).write_text(SCRIPT.replace("START", start).replace("RUNS", str(runs)))
    (folder / script).with_name("model.py").write_text(MODEL)
    (folder / "factor.txt").write_text("1")


def process(*words, stdin=DEVNULL, **options):
    return run([sys.executable, *words], stdin=stdin, stdout=PIPE, stderr=PIPE, text=True, **options)


def record(*words, **options):
    done = process(*words, **options)
    assert done.returncode == 0, done.stderr


def reproduce(*words, code=0):
    done = process("-m", "sacristan", "reproduce", *words)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code < 2 else done.stderr


CAPTURED = ("-m", "sacristan", "run", "--name", "digits", "train.py")


@pytest.mark.parametrize("start", [CAPTURED, ("train.py",)], ids=["captured", "plain"])
def test_seeded_script_is_identical_after_its_code_was_changed(folder, start):
    record(*start, "--lr", "0.3", "--seed", "1")
    (folder / "model.py").write_text(MODEL.replace("-", "+"))
    (folder / "train.py").write_text("raise ValueError")
    assert reproduce("1").startswith("IDENTICAL")
    old, new = (open_store("my_runs").get(number) for number in (1, 2))
    assert (new.name, new.config, new.parent.id) == (old.name, old.config, old.id)
    assert new.config["lr"] == 0.3
    assert "error: run 1 could not be run again: " in reproduce("1", "--in-place", code=2)


def test_module_is_identical_and_not_taken_from_the_working_folder(folder):
    write(folder, script="lab/train.py")
    (folder / "lab" / "train.py").write_text((folder / "lab/train.py").read_text().replace("from model", "from .model"))
    record("-m", "sacristan", "run", "-m", "lab.train", "--seed", "1")
    (folder / "lab" / "model.py").write_text("raise ValueError")
    assert reproduce("1").startswith("IDENTICAL")


OF_HYDRA = """
import hydra
import sacristan

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config):
    sacristan.init().log({"loss": config.optimizer.lr + config.seed}, 0)

main()
"""


def test_script_of_hydra_is_identical_after_its_configs_were_changed(folder):
    pytest.importorskip("hydra")
    (folder / "conf" / "optimizer").mkdir(parents=True)
    configs = {
        "config": "defaults: [{optimizer: sgd}]\nseed: 1\n",
        "optimizer/sgd": "lr: 0.1",
        "optimizer/adam": "lr: 2",
    }
    for name, text in configs.items():
        (folder / "conf" / f"{name}.yaml").write_text(text)
    (folder / "train.py").write_text(OF_HYDRA)
    record("-m", "sacristan", "run", "train.py", "optimizer=adam")
    with open_store("my_runs") as store:
        assert {*store.get(1).sources} == {"conf/config.yaml", "conf/optimizer/adam.yaml", "train.py"}
    for name in configs:
        (folder / "conf" / f"{name}.yaml").write_text("lr: 7")
    assert reproduce("1").startswith("IDENTICAL")
    assert open_store("my_runs").get(2).metric("loss").values.tolist() == [3]


def test_second_run_of_a_process_is_compared_with_the_second(folder):
    write(folder, runs=3)
    record("train.py", "--seed", "1")
    assert "IDENTICAL\nrun 2, reproduced by run 5" in reproduce("2")


def test_dry_prints_the_command_and_runs_nothing(folder):
    record(*CAPTURED[:-1], "--keep", "*.txt", "train.py", "--lr", "0.3")
    plan = json.loads(reproduce("1", "--dry", "--json"))
    assert plan["command"][1:8] == ["-P", "-m", "sacristan", "run", "--name", "digits", "--keep"]
    assert plan["command"][8] == "*.txt"
    assert plan["command"][9].endswith("code/train.py")
    assert plan["command"][10:] == ["--lr", "0.3"]
    assert plan["cwd"] == str(folder)
    assert [found.id for found in open_store("my_runs").find()] == ["1"]


# Depends on a file beside it, a module, a checkpoint, a package and variables.
TAMPERED = """
import argparse, os, random
from pathlib import Path
import numpy
from model import step

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--seed", type=int)
args = parser.parse_args()
import sacristan
run = sacristan.init()
with open("start.ckpt", "rb") as stream:
    loss = float(stream.read())
stream = random.Random(args.seed)
for number in range(5):
    loss = step(loss, args.lr * float(Path("factor.txt").read_text()), stream.random())
    scale = float(os.environ.get("SCALE", "1")) * int(os.environ.get("OMP_NUM_THREADS", "1"))
    run.log({"loss": scale * loss}, number)
"""


def in_the_record(name, before, after):
    def tamper(folder, monkeypatch):
        path = folder / "my_runs" / "1" / name
        content = path.read_bytes()
        assert before in content
        path.write_bytes(content.replace(before, after))

    return tamper


def in_a_file(name, text):
    def tamper(folder, monkeypatch):
        (folder / name).unlink() if text is None else (folder / name).write_text(text)

    return tamper


def in_a_variable(name):
    return lambda folder, monkeypatch: monkeypatch.setenv(name, "3")


def in_a_point(folder, monkeypatch):
    path = folder / "my_runs" / "1" / "metrics.bin"
    path.write_bytes(path.read_bytes()[:-2] + b"..")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("tamper", "options", "code", "causes"),
    [
        (in_a_file("factor.txt", "2"), (), 1, ["file factor.txt: recorded"]),
        (in_the_record("run.json", b'"0.3"', b'"0.4"'), (), 1, ["setting lr: recorded 0.3, now 0.4"]),
        (
            in_a_file("model.py", MODEL.replace("lr * noise", "2 * lr * noise")),
            ("--in-place",),
            1,
            ["the environment is the same: the difference comes from the code (model.py)", "2 * lr * noise"],
        ),
        (in_a_file("train.py", TAMPERED.replace("scale * loss", "loss + 1")), ("--in-place",), 1, ["(train.py)"]),
        (in_a_file("start.ckpt", "2.0"), (), 1, ["file start.ckpt: recorded"]),
        (in_a_file("factor.txt", None), (), 2, ["run 2 failed: FileNotFoundError: [Errno 2] No such file"]),
        (in_a_variable("SCALE"), (), 1, ["variable SCALE: recorded"]),
        (in_a_variable("OMP_NUM_THREADS"), (), 1, ["variable OMP_NUM_THREADS: recorded"]),
        (in_the_record("run.json", b'"7"', b'"8"'), (), 1, ["setting seed: recorded 7, now 8"]),
        (in_the_record("provenance.json", b'"numpy": "', b'"numpy": "0.'), (), 0, ["package numpy: recorded 0."]),
        (in_a_point, (), 2, ["the record of run 1 is damaged", "metrics.bin: points 0 to"]),
    ],
    ids=[
        "data file", "argument", "module", "script", "checkpoint", "missing file", "variable", "threads", "seed",
        "package", "record",
    ],
)  # fmt: skip
def test_tampered_script_is_told_with_the_cause(folder, monkeypatch, tamper, options, code, causes):
    for name in ("SCALE", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    (folder / "train.py").write_text(TAMPERED)
    (folder / "start.ckpt").write_text("1.0")
    record(*CAPTURED, "--lr", "0.3", "--seed", "7")
    tamper(folder, monkeypatch)
    done = process("-m", "sacristan", "reproduce", "1", *options)
    said = done.stdout + done.stderr
    assert done.returncode == code, said
    assert [cause for cause in causes if cause not in said] == []
    if code == 1:
        assert done.stdout.startswith("DIVERGED: loss at step 0: recorded ")


def test_unseeded_script_diverges_although_nothing_recorded_differs(folder):
    record(*CAPTURED, cold=True)  # as the process that reproduces it: a warm Python has imported torch
    text = reproduce("1", code=1)
    assert re.match(r"DIVERGED: loss at step \d: ", text)  # the first may lie within the tolerance by chance
    assert "nothing recorded differs; a record does not include the time, random generators without a seed" in text


def test_resuming_script_is_reproduced_from_its_start(folder):
    write(folder, "import os, sys")
    text = (folder / "train.py").read_text().replace("config=vars(args)", "config=vars(args), id='a', resume='allow'")
    (folder / "train.py").write_text(text)
    record("train.py", "--seed", "1")
    assert "IDENTICAL\nrun 1, reproduced by run 2" in reproduce("1")


def refused_after(*words, **options):
    record(*words, **options)
    error = reproduce("1", code=2)
    assert [found.id for found in open_store("my_runs").find()] == ["1"]
    return error.splitlines()[-1]


def test_script_that_reads_its_standard_input_is_refused(folder):
    write(folder, "import sys; sys.stdin.read()")
    with (folder / "factor.txt").open() as stream:
        assert refused_after(*CAPTURED, "--lr", "0.2", stdin=stream) == (
            "error: run 1 read its standard input, which is not recorded; start it yourself with the same input: "
            "sacristan run --name digits train.py --lr 0.2 < FILE"
        )


def test_code_from_the_standard_input_is_refused(folder):
    with (folder / "train.py").open() as stream:
        assert "run 1 names no main file, so it was started in a notebook or an interpreter" in refused_after(
            "-", stdin=stream
        )


def test_program_without_python_is_refused(folder):
    assert refused_after("-m", "sacristan", "run", "--", "echo", "a b") == (
        "error: run 1 is of a program without Python, so there is no code to restore and no point to compare; start it "
        "again: sacristan run -- echo 'a b'"
    )


def test_words_without_their_password_are_refused(folder):
    write(folder, "import sys; sys.argv.remove('http://me:word@host')")
    assert "without the password in its words: http://me:***@host; start it yourself" in refused_after(
        *CAPTURED, "http://me:word@host"
    )


def test_processes_of_an_unknown_launcher_are_refused(folder, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert "run 1 had 2 processes on several machines, or by another launcher than torchrun" in refused_after(*CAPTURED)


OF_RANKS = """
import os
import re
import sacristan
run = sacristan.init()
for step in range(3):
    run.log({"loss": int(os.environ["WORLD_SIZE"]) + step}, step)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "before", [["-m", "sacristan", "run", "--name", "digits", "--", sys.executable], []], ids=["captured", "plain"]
)
def test_processes_of_torchrun_are_started_again(folder, before):
    (folder / "train.py").write_text(OF_RANKS)
    record(*before, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py", "--lr", "1")
    assert reproduce("1").startswith("IDENTICAL")
    old, new = (open_store("my_runs").get(number) for number in (1, 2))
    assert (new.name, new.metric("loss").values.tolist()) == (old.name, [2, 3, 4])
    assert len(open_store("my_runs").find()) == 2


def test_settings_for_a_script_are_refused(folder):
    record(*CAPTURED)
    assert "run 1 is of a script, whose settings are its own words: got lr=1; give words after --" in reproduce(
        "1", "with", "lr=1", code=2
    )


def test_script_that_replaces_its_process_says_how_it_ended(folder):
    (folder / "train.py").write_text("import os\nprint('before')\nos.execv('/bin/true', ['true'])\n")
    record(*CAPTURED)
    assert reproduce("1", code=2).splitlines()[-1] == (
        "error: run 1 cannot be run again: its script replaces its process by another program (os.exec), which ends "
        "its record; record that program itself"
    )


def test_commit_is_restored_with_files_that_the_script_finds_beside_itself(folder):
    (folder / "tools").mkdir()
    write(folder, script="tools/train.py")
    text = (folder / "tools/train.py").read_text()
    (folder / "tools/train.py").write_text(text.replace('Path("factor.txt")', 'Path(__file__).with_name("factor.txt")'))
    (folder / "tools/factor.txt").write_text("2")
    for words in (["init", "-q"], ["add", "tools"], ["commit", "-qm", "first"]):
        who = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
        subprocess.run(["git", "-C", folder, *who, *words], check=True)
    record("-m", "sacristan", "run", "tools/train.py", "--seed", "1")
    (folder / "tools/factor.txt").write_text("3")
    assert reproduce("1").startswith("IDENTICAL")


# Is killed in the middle, once.
LOOP = """
import os
import sys

import torch

import sacristan

torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), float(sys.argv[1]))
run = sacristan.init(config={"lr": sys.argv[1]})
for step in run.checkpoint(model=net, optimizer=optimizer, every=1).steps(12):
    loss = net(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.log({"loss": loss.item()}, step)
    if step == 6 and not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(
    "start", [pytest.param(CAPTURED, marks=pytest.mark.slow), ("train.py",)], ids=["captured", "plain"]
)
def test_killed_script_is_resumed_in_its_record_and_is_identical_to_an_unbroken_one(folder, start):
    (folder / "train.py").write_text(LOOP)
    assert process(*start, "0.1").returncode == -9
    done = process("-m", "sacristan", "resume", "1")
    assert done.returncode == 0, done.stderr
    [resumed] = open_store("my_runs").find()
    assert (resumed.status, resumed.metric("loss").steps.tolist()) == ("COMPLETED", [*range(12)])
    assert reproduce("1").startswith("IDENTICAL")
    assert "error: run 1 is COMPLETED: nothing is left to do\n" in process("-m", "sacristan", "resume", "1").stderr


def test_script_without_states_is_not_resumed_and_forked_from_its_beginning(folder):
    write(folder, "import sys; sys.exit(Path('stop').exists())")
    (folder / "stop").touch()
    assert process(*CAPTURED, "--lr", "0.2", "--seed", "1").returncode == 1
    command = "sacristan run --name digits train.py --lr 0.2 --seed 1"
    assert process("-m", "sacristan", "resume", "1").stderr == (
        "error: run 1 keeps no states of its training: its script does not call run.checkpoint; start it again: "
        f"{command}\n"
    )
    write(folder)
    plan = process("-m", "sacristan", "fork", "1", "--dry", "--", "--lr", "0.3")
    assert plan.returncode == 0
    assert "keeps no states of its training, so the new run starts from the beginning" in plan.stdout + plan.stderr
    assert "from a state" not in plan.stdout + plan.stderr
    assert len(open_store("my_runs").find()) == 1
    done = process("-m", "sacristan", "fork", "1", "--", "--lr", "0.3")
    assert done.returncode == 0, done.stderr
    new = open_store("my_runs").get(2)
    assert (new.parent.id, new.status, new.name) == ("1", "COMPLETED", "digits")
    assert (new.config["lr"], new.config["seed"]) == (0.3, 1)


# Logs the learning rate of each step.
SCHEDULED = """
import sys
import torch
import sacristan
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), float(sys.argv[-1]), momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
run = sacristan.init(config={"lr": float(sys.argv[-1])})
for step in run.checkpoint(model=net, optimizer=optimizer, scheduler=scheduler, every=4).steps(8):
    loss = net(torch.ones(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.log({"loss": loss.item(), "lr": scheduler.get_last_lr()[0]}, step)
    scheduler.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize("lr", ["1e-2", None])
def test_fork_starts_from_a_state_with_the_new_words(folder, lr):
    (folder / "train.py").write_text(SCHEDULED)
    record(*CAPTURED, "1e-3")
    old = open_store("my_runs").get(1)
    state = "step-000000004.pt"
    assert (old.folder / "checkpoints" / state).exists()
    done = process("-m", "sacristan", "fork", "1", "--state", state, *(["--", lr] if lr else []))
    assert done.returncode == 0, done.stderr
    new = open_store("my_runs").get(2)
    assert (new.parent.id, new.metric("loss").steps.tolist()) == ("1", [4, 5, 6, 7])
    if lr is None:
        for name in ("loss", "lr"):
            assert new.metric(name).values.tolist() == old.metric(name).values.tolist()[4:]
    else:
        assert (new.config["lr"], new.metric("loss").values[0]) == (0.01, old.metric("loss").values[4])
        assert new.metric("lr").values.tolist() == [0.0025, 0.0025, 0.00125, 0.00125]


def test_queued_script_is_started_in_its_record_by_a_worker(folder):
    words = ["--lr", "0.3", "--seed", "1"]
    record("-m", "sacristan", "run", "-q", "--priority", "2", "--name", "digits", "train.py", *words)
    queued = open_store("my_runs").get(1)
    assert (queued.status, queued.get("meta.priority"), queued.config["args"]) == ("QUEUED", 2, words)
    done = process("-m", "sacristan", "work", "--until-empty")
    assert done.returncode == 0, done.stdout + done.stderr
    [found] = open_store("my_runs").find()
    assert (found.status, found.config["lr"], found.name) == ("COMPLETED", 0.3, "digits")
    assert found.metric("loss").steps.tolist() == [*range(5)]
    assert reproduce("1").startswith("IDENTICAL")
