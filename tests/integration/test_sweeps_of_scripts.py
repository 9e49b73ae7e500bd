"""`sacristan sweep`: trials of a script that was not written for the lab."""

from __future__ import annotations

import sys

import pytest

import sacristan.__main__
from sacristan.runs import SweepError, open_store
from sacristan.runs.sweeps import script_words, with_macro
from tests.integration.test_sweeps_on_clusters import OF_RAY
from tests.processes import PIPE, run

TRAIN = """
import argparse, os, signal
from pathlib import Path
import sacristan

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--use-amp", action=argparse.BooleanOptionalAction, default=True)
args = parser.parse_args()
tracked = sacristan.init()
for epoch in range(args.epochs):
    tracked.log({"val/acc": args.lr * args.batch_size + epoch}, epoch)
    if Path("kill").exists():
        Path("kill").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def swept(tmp_path):
    """Return a function that gives words to `sacristan sweep` in a folder with a script, and returns what it did."""
    (tmp_path / "train.py").write_text(TRAIN)

    def sweep(*words):
        command = [sys.executable, "-m", "sacristan", "sweep", *words]
        return run(command, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True)

    return sweep


METRIC = ("--metric", "val/acc.max", "--goal", "maximize", "--id", "first", "--packages", "")


def runs_in(folder):
    with open_store(folder / "my_runs") as store:
        return [(run.status, dict(run.config), run.summary) for run in store.find([("meta.sweep.id", "=", "first")])]


@pytest.mark.slow
def test_modules_of_the_working_folder_keep_no_agent_from_starting(tmp_path):
    (tmp_path / "random.py").write_text("")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(TRAIN)
    command = [
        sys.executable,
        sacristan.__main__.__file__,
        "sweep",
        "src/train.py",
        "--over",
        "{lr: [0.1, 0.5]}",
        *METRIC,
    ]
    done = run(command, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True, cold=True, starts_python=False)
    assert done.returncode == 0, done.stderr
    assert sorted(config["lr"] for _, config, _ in runs_in(tmp_path)) == [0.1, 0.5]


def test_every_point_of_a_script_is_a_run_and_the_best_one_is_named_by_its_command(swept, tmp_path):
    words = ["train.py", "--over", "{lr: [0.1, 0.5], batch-size: [2, 4]}", *METRIC, "--", "--epochs", "2"]
    done = swept(*words)
    assert done.returncode == 0, done.stderr
    recorded = runs_in(tmp_path)
    assert {status for status, *_ in recorded} == {"COMPLETED"}
    points = sorted((config["lr"], config["batch_size"], config["epochs"]) for _, config, _ in recorded)
    assert points == [(0.1, 2, 2), (0.1, 4, 2), (0.5, 2, 2), (0.5, 4, 2)]
    best = swept("best", "--id", "first")
    assert "val/acc.max 3 in the sweep" in best.stdout
    assert "sacristan run train.py --epochs 2 --batch-size=4 --lr=0.5" in best.stdout
    assert "sweep first: 4 of 4 done" in swept("status").stdout
    again = swept(*words)
    assert again.returncode == 0
    assert len(runs_in(tmp_path)) == 4
    other = swept(*words[:3], "--metric", "val/acc.max", "--id", "first", *words[-3:])
    assert "--id: got 'first', a sweep with the objective 'maximize val/acc.max', not 'minimize" in other.stderr


def test_a_module_is_searched_at_random_by_two_workers(swept, tmp_path):
    options = ("--method", "random", "--count", "3", "--workers", "2", "--sampler-seed", "1", "--retries", "0")
    words = ["-m", "train", "--over", "{lr: {min: 0.1, max: 0.5}}", *METRIC, *options]
    done = swept(*words)
    assert done.returncode == 0, done.stderr
    recorded = runs_in(tmp_path)
    assert [status for status, *_ in recorded] == ["COMPLETED"] * 3
    assert all(0.1 <= config["lr"] <= 0.5 for _, config, _ in recorded)
    again = swept(*words, "--retry-failed")
    assert again.returncode == 0, again.stderr
    assert len(runs_in(tmp_path)) == 3


def test_a_parameter_that_the_script_does_not_know_ends_the_sweep_at_its_first_trial(swept, tmp_path):
    done = swept("train.py", "--over", "{lrr: [0.1, 0.5, 0.7], epochs: [1, 2]}", *METRIC)
    assert done.returncode == 1
    assert [status for status, *_ in runs_in(tmp_path)] == ["FAILED"]
    assert "train.py: error: unrecognized arguments: --lrr=0.1; train.py has not taken lrr" in done.stderr


def test_a_trial_that_is_killed_starts_again(swept, tmp_path):
    (tmp_path / "kill").touch()
    done = swept("train.py", "--over", "{lr: [0.1, 0.5]}", *METRIC)
    assert done.returncode == 0, done.stderr
    recorded = [(status, config["lr"]) for status, config, _ in runs_in(tmp_path)]
    assert sorted(recorded) == [("COMPLETED", 0.1), ("COMPLETED", 0.5), ("DEAD", 0.1)]


def test_a_file_of_wandbs_names_the_script_and_how_it_takes_parameters(swept, tmp_path):
    (tmp_path / "args.py").write_text("import sacristan, sys; sacristan.init().log({'loss': len(sys.argv)})")
    (tmp_path / "sweep.yaml").write_text("""
program: args.py
method: grid
metric: {name: loss, goal: minimize}
parameters: {lr: {values: [0.1, 0.5]}, amp: {value: false}}
command: ["${env}", python, "${program}", --epochs=3, "${args_no_hyphens}"]
""")
    done = swept("sweep.yaml", "--id", "first", "--packages", "", "--", "--fast")
    assert done.returncode == 0, done.stderr
    assert swept("best").stdout.startswith("trial 0: loss 5"), "the only sweep needs no --id"
    words = sorted(config["args"] for _, config, _ in runs_in(tmp_path))
    assert [sorted(each) for each in words] == [
        ["--fast", "amp=False", "epochs=3", "lr=0.1"],
        ["--fast", "amp=False", "epochs=3", "lr=0.5"],
    ]
    assert with_macro([], {"program": "args.py"}) == ["${args}"]
    with pytest.raises(SweepError, match="args_json_file"):
        with_macro([], {"command": ["${args_json_file}"]})


PARSES_NOTHING = """
import IMPORT as tracker
defaults = {"lr": 0.5, "epochs": 3, "net": {"width": 4, "depth": 1}}
tracker.init(config=defaults)
config = tracker.config
config.update({"lr": 0.7, "seed": 1})
assert defaults["net"] == {"width": 4, "depth": 1}
tracker.log({"loss": config.lr * config["net"]["width"] + config.epochs})
"""


@pytest.mark.parametrize("library", ["sacristan", "wandb"])
def test_a_script_that_parses_nothing_finds_the_sweeps_settings_in_its_config(swept, tmp_path, library):
    (tmp_path / "plain.py").write_text(PARSES_NOTHING.replace("IMPORT", library))
    over = "{lr: [0.1, 0.2], net.width: [8]}"
    done = swept("plain.py", "--over", over, "--metric", "loss.min", "--id", "first", "--packages", "")
    assert done.returncode == 0, done.stderr
    found = sorted((config["lr"], config["epochs"], dict(config["net"])) for _, config, _ in runs_in(tmp_path))
    assert found == [(lr, 3, {"width": 8, "depth": 1}) for lr in (0.1, 0.2)]
    losses = sorted(summary["loss"]["last"] for *_, summary in runs_in(tmp_path))
    assert losses == pytest.approx([3.8, 4.6])


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [["--engine", "slurm", "--slurm", "{cluster: local}"], ["--engine", "ray", "--resources", "{cpus: 1}"]],
    ids=["slurm", "ray"],
)
def test_agents_on_a_cluster_try_each_point_of_a_script_once(swept, tmp_path, words, monkeypatch):
    pytest.importorskip("submitit" if words[1] == "slurm" else "ray", reason="not installed: extras ray and slurm")
    for name, value in OF_RAY.items():
        monkeypatch.setenv(name, value)
    done = swept("train.py", "--over", "{lr: [0.1, 0.5]}", *METRIC, *words, "--", "--epochs", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(config["lr"] for status, config, _ in runs_in(tmp_path) if status == "COMPLETED") == [0.1, 0.5]


def test_hyperband_prunes_a_script_by_what_it_logs(swept, tmp_path):
    (tmp_path / "sweep.yaml").write_text("""
program: train.py
method: grid
metric: {name: val/acc, goal: maximize}
parameters: {lr: {values: [3.0, 0.1]}, epochs: {value: 9}}
early_terminate: {type: hyperband, min_iter: 2}
""")
    done = swept("--spec", "sweep.yaml", "--id", "first", "--packages", "")
    assert done.returncode == 0, done.stderr
    with open_store(tmp_path / "my_runs") as store:
        found = [(run.config["lr"], run.status, len(run.metric("val/acc").values)) for run in store.find()]
    assert found == [(0.1, "PRUNED", 2), (3.0, "COMPLETED", 9)]


NAMED_AS_TYPED = """
from torch.utils.tensorboard import SummaryWriter

SummaryWriter("events").add_hparams({"use-amp": True}, {"val/acc": 1.0})
"""


@pytest.mark.parametrize("script", [TRAIN, pytest.param(NAMED_AS_TYPED, marks=pytest.mark.slow)])
def test_a_flag_whose_absence_does_not_mean_false_fails_its_trial(swept, tmp_path, script):
    (tmp_path / "train.py").write_text(script)
    done = swept("train.py", "--over", "{use-amp: [true, false]}", *METRIC)
    assert done.returncode == 0
    assert "use-amp is True in run 2, expected False" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothere.py", "--over", "{lr: [1]}"], "nothere.py: there is no such script"),
        (["train.py"], "got no search space, expected --over"),
        (["train.py", "--over", "{lr: ["], "which is not valid YAML"),
        (["train.py", "--over", "{lr: [1, 2]}", "--", "--lr=3"], "lr: is searched, but --lr=3 is fixed for all runs"),
        (["train.py", "--over", "{lr: [1]}", "--slurm", "{a: 1}"], "got options with sweep.engine=local"),
        (["train.py", "--over", "{lr: [1]}", "--engine", "ray", "--resources", "3"], "--resources: got '3', expected"),
        (["train.py", "--over", "{lr: [1]}", "--address", "127.0.0.1:1"], "got '127.0.0.1:1' with sweep.engine=local"),
        (["best"], "got no --id, expected one of 0 sweeps"),
        (["w.yaml", "--over", "{lr: [1]}"], "got --over and the file w.yaml, expected one of them"),
        (["w.yaml"], "w.yaml"),
        (["best", "--id", "none"], "none"),
        (["-m", "nothere", "--over", "{lr: [1]}"], "-m nothere: there is no such module"),
    ],
)
def test_what_cannot_be_swept_is_said_in_one_line_and_starts_nothing(swept, tmp_path, words, message):
    done = swept(*words)
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "my_runs" / "1").exists()


def test_macros_give_parameters_in_wandbs_forms():
    given = {"lr": 0.1, "amp": True, "bias": False}
    assert script_words(with_macro(["--epochs", "2"], {}), given) == ["--epochs", "2", "--lr=0.1", "--amp"]
    assert script_words(["${args}"], given) == ["--lr=0.1", "--amp=True", "--bias=False"]
    assert script_words(with_macro(["${args_no_hyphens}", "x"], {}), given) == ["lr=0.1", "amp=True", "bias=False", "x"]
    assert script_words(["${args_json}"], given) == ['{"lr": 0.1, "amp": true, "bias": false}']
