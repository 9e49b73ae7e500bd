"""Whole runs as processes, the way a user starts them."""

import csv
import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch

from sacristan.observers import read_media, read_table
from tests.processes import run
from tests.terminals import run_in_terminal

LAB = Path(__file__).parents[2]
BEST = "checkpoint.path=my_runs/1/checkpoints/best.pt"

PAIR = '''
"""Two halves of an autoencoder, each with an optimizer of its own."""

import torch

from sacristan.experiments import Experiment
from sacristan.ingredients import amp, device, optimizer
from sacristan.ingredients.config.seed import torch_stream

decoder_optimizer = optimizer.ingredient.twin("decoder_optimizer")
ex = Experiment("pair", ingredients=[device.ingredient, amp.ingredient, optimizer.ingredient, decoder_optimizer])


@ex.automain
def main(_run, seed):
    where = device.make_device(seed)
    precision = amp.make_amp(where)
    inputs = torch.randn(64, 6, generator=torch_stream(seed, "inputs"))
    encoder, decoder = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)
    optimizers = optimizer.make_optimizer(encoder), decoder_optimizer.make_optimizer(decoder)
    losses = []
    for step in range(200):
        with precision.autocast():
            loss = (decoder(encoder(inputs)) - inputs).square().mean()
        precision.backward(loss)
        for one in optimizers:
            precision.step(one)
        precision.update()
        for one in optimizers:
            one.zero_grad()
        losses.append(loss.item())
    print([(type(one).__name__, one.param_groups[0]["lr"]) for one in optimizers])
    return losses[-1] / losses[0]
'''


def start(folder, *words, script=LAB / "exp.py"):
    env = {**os.environ, "PYTHONPATH": str(LAB)}
    return run([sys.executable, str(script), *words], cwd=folder, env=env, capture_output=True, text=True)


def result(done):
    """Return the result that a run reports, after a good end."""
    assert done.returncode == 0, done.stderr
    return float(re.search(r"Result: (\S+)", done.stderr).group(1))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the folder of one run with everything left at its default, and how it ended."""
    folder = tmp_path_factory.mktemp("trained")
    return folder, start(folder)


def test_first_line_says_what_is_trained_and_the_last_where_it_is_recorded(trained):
    _, done = trained
    said = [line.partition(" - ")[2] for line in done.stderr.splitlines()]
    lines = [line.partition(" - ")[2] for line in said if not line.startswith("exp - ")]
    assert (
        lines[0] == "digits (1,258 train, 269 val, 270 test samples; 0.5 MiB in memory), mlp (26,122 parameters), cpu"
    )
    assert said[-1] == "exp - Recorded in my_runs/1"


def test_run_ends_with_plain_figures_and_records_them(trained):
    folder, done = trained
    speed = json.loads((folder / "my_runs" / "1" / "info.json").read_text())["speed"]
    assert sorted(speed) == ["peak_memory_bytes", "samples_per_s", "steps_per_s", "train_s"]
    assert speed["samples_per_s"] * speed["train_s"] == pytest.approx(30 * 1258)
    assert re.search(r"trained at \S+ samples/s, \S+ steps/s; peak memory \S+ MiB\n", done.stderr)


def test_run_of_the_defaults_reaches_its_accuracy(trained):
    assert result(trained[1]) >= 0.96


def test_run_without_a_terminal_draws_no_bar_and_tells_about_twenty_epochs(trained):
    _, done = trained
    assert done.stdout == ""
    assert "step/s" not in done.stderr
    assert 10 <= done.stderr.count("epoch ") <= 21


def test_evaluate_of_the_best_checkpoint_is_the_result_of_the_run(trained):
    folder, done = trained
    assert result(start(folder, "evaluate", "with", "my_runs/1/config.json", BEST)) == result(done)


def test_predict_of_the_best_checkpoint_is_a_table_of_the_test_part(trained):
    folder, done = trained
    assert result(start(folder, "predict", "with", "my_runs/1/config.json", BEST)) == 270
    (path,) = (folder / "my_runs").rglob("predictions.csv")
    with path.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["index", "target", "prediction", *(f"p({digit})" for digit in range(10))]
    assert sum(row["target"] == row["prediction"] for row in rows) / 270 == pytest.approx(result(done))
    for row in rows:
        probabilities = {digit: float(row[f"p({digit})"]) for digit in range(10)}
        assert sum(probabilities.values()) == pytest.approx(1, abs=1e-4)
        assert max(probabilities, key=probabilities.get) == int(row["prediction"])


def test_good_and_bad_cases_of_the_test_part_are_recorded(trained):
    folder, done = trained
    [record] = read_media(folder / "my_runs" / "1")
    columns, rows = read_table(record.path)
    assert (record.name, record.kind) == ("test/cases", "table")
    assert columns == ["case", "sample", "image", "label", "prediction", "probability"]
    assert all((row[3] == row[4]) == (row[0] != "wrong") for row in rows)
    assert all(row[2].read_bytes().startswith(b"\x89PNG") for row in rows)
    assert sum(row[0] == "wrong" for row in rows) == min(8, round((1 - result(done)) * 270))


@pytest.mark.slow
def test_run_with_tensorboard_has_graph_metrics_and_cases_and_the_same_result(trained, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert result(start(tmp_path, "--tensorboard")) == result(trained[1])
    found = EventAccumulator(str(tmp_path / "my_runs" / "1" / "tensorboard")).Reload()
    assert found.Graph().node
    assert "val/loss" in found.Tags()["scalars"]
    assert {"test/cases", "test/cases/image"} <= set(found.Tags()["tensors"])
    best = BEST.partition("=")[2]
    plain, drawn = (torch.load(where / best, weights_only=True)["model"] for where in (trained[0], tmp_path))
    assert all(torch.equal(plain[name], drawn[name]) for name in plain)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["with", "model.name=mpl"], r"model\.name: got 'mpl', which is unknown; did you mean mlp\?"),
        (
            ["with", "loss.name=mse"],
            r"loss\.name: mse is for regression, but the data are for classification; use cross",
        ),
        (
            ["evaluate", "with", BEST, "model.options.hidden=[16]"],
            r"my_runs/1/checkpoints/best\.pt: does not fit this model: 1\.weight is \[128, 64\] there and \[16, 64\] "
            r"here; .*; take the settings of its run: with .*/my_runs/1/config\.json",
        ),
    ],
)
def test_run_of_what_does_not_fit_ends_with_one_line_and_exit_code_one(trained, words, message):
    done = start(trained[0], *words)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert re.match(f"error: {message}", line)
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_run_of_the_cnn_reaches_its_accuracy(tmp_path):
    assert result(start(tmp_path, "with", "model.name=cnn", "epochs=5")) >= 0.98


def test_run_that_diverges_fails_and_keeps_its_last_good_state(tmp_path):
    done = start(tmp_path, "with", "lr=1e30", "epochs=2", "checkpoint.interval_steps=1")
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert re.match(
        r"error: training: the loss is nan at step 2 \(epoch 1, batch 2\); the state after step 1 is kept in "
        r"my_runs/1/checkpoints/last\.pt\. Lower the learning rate, ",
        line,
    )
    assert "Result" not in done.stderr
    record = json.loads((tmp_path / "my_runs" / "1" / "run.json").read_text())
    assert record["status"] == "FAILED"
    state = torch.load(tmp_path / "my_runs" / "1" / "checkpoints" / "last.pt", weights_only=True)
    assert state["step"] == 1
    assert all(values.isfinite().all() for values in state["model"].values())


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """Return the folder of a training in a terminal, and what the terminal showed."""
    folder = tmp_path_factory.mktemp("watched")
    command = [sys.executable, str(LAB / "exp.py"), "with", "epochs=20", "training.log_interval=10"]
    env = {name: value for name, value in os.environ.items() if name not in ("CI", "SACRISTAN_STORE")}
    code, shown = run_in_terminal(command, folder, env)
    assert code == 0, shown
    return folder, shown


@pytest.mark.slow
def test_run_on_a_terminal_draws_a_bar_that_is_not_recorded(watched):
    folder, shown = watched
    assert re.search(r"\d+/400 \[.*loss \d", shown)
    recorded = [path for path in (folder / "my_runs" / "1").rglob("*") if path.is_file()]
    output = (folder / "my_runs" / "1" / "cout.txt").read_text()
    assert "epoch 20/20" in output
    assert "Next, " not in output
    assert not [path for path in recorded if re.search(rb"\dstep/s", path.read_bytes())]


def test_run_on_a_terminal_ends_with_commands_that_work(watched):
    folder, shown = watched
    show, board, evaluate = [shlex.split(line) for line in shown.partition("Next, ")[2].splitlines()[1:]]
    env = {**os.environ, "PYTHONPATH": str(LAB)}
    for command in (show, [*board, "--help"], evaluate):
        words = ["-m", *command] if command[0] == "sacristan" else command[1:]
        done = run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    record = json.loads((folder / "my_runs" / "2" / "run.json").read_text())
    assert (record["command"], record["status"]) == ("evaluate", "COMPLETED")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["off", "float16"])
def test_run_of_two_optimizers_steps_each_with_its_own_settings(tmp_path, dtype):
    (tmp_path / "pair.py").write_text(PAIR)
    settings = ["optimizer.lr=0.01", "decoder_optimizer.name=SGD", "decoder_optimizer.lr=0.1", f"amp.dtype={dtype}"]
    done = start(tmp_path, "with", *settings, script=tmp_path / "pair.py")
    assert result(done) < 0.5
    assert "[('AdamW', 0.01), ('SGD', 0.1)]" in done.stdout
