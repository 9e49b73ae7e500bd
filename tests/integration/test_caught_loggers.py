"""What a script logs with other libraries: recorded value by value, and the libraries do what they do without us."""

from __future__ import annotations

import math
import os
import random
import signal
import sys
import time

import pytest

from sacristan.experiments.scripts.capturing import Capture
from sacristan.observers import read_media
from sacristan.runs import open_store
from sacristan.runs.stores.settings import origins
from tests.processes import PIPE, Process, run

WRITERS = """
import numpy, torch
from {module} import SummaryWriter
torch.manual_seed(0)
writer = SummaryWriter("events")
for step in range(30):
    assert writer.add_scalar("loss", torch.tensor(1 / (step + 1)), step) is None
    writer.add_scalar("val/acc", numpy.float32(step / 30), torch.tensor(step))
    writer.add_scalars("both", {{"a": step, "b": -step}}, step)
writer.add_scalar("nan", float("nan"), 0)
writer.add_histogram("weights", torch.randn(50), 3)
writer.add_image("image", torch.rand(3, 4, 6), 3)
writer.add_images("images", torch.rand(2, 3, 4, 6), 3)
writer.add_text("note", "a text", 3)
writer.add_hparams({{"lr": 0.1, "net": "mlp"}}, {{"score": 0.5}})
writer.add_embedding(torch.zeros(2, 3)) if hasattr(writer, "add_embedding") else None
with SummaryWriter("events/val") as other:
    other.add_scalar("loss", 2.0, 7)
print("done")
"""


def run_script(text, folder, *words):
    (folder / "train.py").write_text(text)
    command = [sys.executable, "-m", "sacristan", "run", *words, "train.py"]
    return run(command, cwd=folder, stdout=PIPE, stderr=PIPE, text=True)


NOT_RECORDED = """
import numpy
from {module} import SummaryWriter
writer = SummaryWriter("events")
for _ in range(2):
    writer.add_custom_scalars({{"losses": {{"both": ["Multiline", ["loss"]]}}}})
    writer.add_image_with_boxes("image", numpy.zeros((3, 4, 4)), numpy.array([[0, 0, 1, 1]]))
    writer.add_scalar("loss", 0.5)
"""


@pytest.mark.slow
@pytest.mark.parametrize("module", ["torch.utils.tensorboard", "tensorboardX"])
def test_each_call_of_a_writer_that_is_not_recorded_is_named_once(tmp_path, module):
    done = run_script(NOT_RECORDED.format(module=module), tmp_path)
    assert done.returncode == 0, done.stderr
    named = [line for line in done.stderr.splitlines() if "not recorded" in line]
    calls = ("add_custom_scalars", "add_image_with_boxes")
    assert named == [f"sacristan: tensorboard: {call} is not recorded" for call in calls]


@pytest.mark.parametrize("module", ["torch.utils.tensorboard", pytest.param("tensorboardX", marks=pytest.mark.slow)])
def test_record_has_what_event_files_have(tmp_path, module):
    pytest.importorskip(module)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done = run_script(WRITERS.format(module=module), tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert done.stderr.count("recording what the script logs with tensorboard") == 1
    with open_store(tmp_path / "my_runs") as store:
        [found] = store.find()
        of_both = "both_a/" if module.startswith("torch") else "both/a/"
        for folder, prefix in (("events", ""), (f"events/{of_both}", of_both), ("events/val", "val/")):
            reader = EventAccumulator(str(tmp_path / folder), {"scalars": 0})
            reader.Reload()
            for tag in reader.Tags()["scalars"]:
                series = found.metric(prefix + tag)
                events = reader.Scalars(tag)
                assert series.steps.tolist() == [event.step for event in events]
                assert series.values.astype("f4").tolist() == pytest.approx(
                    [each.value for each in events], nan_ok=True
                )
        assert found.metric("score").values.tolist() == [0.5]
        assert found.config == {"lr": 0.1, "net": "mlp"}
        assert {"add_scalar", "add_hparams", "add_text"} <= {*found.get("info.captured")["tensorboard"]}
    media = read_media(tmp_path / "my_runs" / "1")
    kinds = {entry.name: entry.kind for entry in media}
    assert kinds == {"weights": "histogram", "image": "image", "images": "image", "note": "text"}
    if "add_embedding" in WRITERS and module.startswith("torch"):
        assert "tensorboard: add_embedding is not recorded" in done.stderr


def test_record_has_what_an_import_of_the_event_files_has(tmp_path):
    pytest.importorskip("tensorboard")
    from sacristan.runs.transfer.trackers import event_files

    assert run_script(WRITERS.format(module="torch.utils.tensorboard"), tmp_path).returncode == 0
    [imported] = [each.read() for each in event_files.find(tmp_path / "events")]
    with open_store(tmp_path / "my_runs") as store:
        [found] = store.find()
        assert found.config == imported.config
        own = {name: found.metric(name) for name in found.metrics if not name.startswith("system/")}
        assert own.keys() == {curve.name for curve in imported.curves}
        for curve in imported.curves:
            assert own[curve.name].steps.tolist() == curve.steps.tolist()
            assert own[curve.name].values.astype("f4").tolist() == pytest.approx(curve.values.tolist(), nan_ok=True)
        media = {(medium.name, medium.kind, medium.step) for medium in found.media}
        assert media == {(medium.name, medium.kind, medium.step) for medium in imported.media}


TRIALS = """
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter("events")
writer.add_scalar("loss", 1.0, 0)
for lr in (0.25, 0.5):
    for final in (3.0, 4.0):
        writer.add_hparams({"lr": lr}, {"loss": final, "score": lr})
with SummaryWriter("other") as other:
    other.add_hparams({"lr": 0.75}, {"score": 0.75})
"""


def test_further_hyperparameters_are_parts_of_the_record_and_mix_with_no_curve(tmp_path):
    done = run_script(TRIALS, tmp_path)
    assert done.returncode == 0, done.stderr
    with open_store(tmp_path / "my_runs") as store:
        [found] = store.find()
        assert found.config == {"lr": 0.25, "run_2": {"lr": 0.5}, "other": {"lr": 0.75}}
        own = {name: found.metric(name).values.tolist() for name in found.metrics if not name.startswith("system/")}
    assert own == {
        "loss": [1.0], "hparams/loss": [3.0, 4.0], "score": [0.25, 0.25],
        "run_2/loss": [3.0, 4.0], "run_2/score": [0.5, 0.5], "other/score": [0.75],
    }  # fmt: skip


CHANGED = """
import argparse
from torch.utils.tensorboard import SummaryWriter

parser = argparse.ArgumentParser()
for name in ("lr", "decay", "momentum"):
    parser.add_argument(f"--{name}", type=float, default=0.0)
args = parser.parse_args()
with SummaryWriter("events") as writer:
    writer.add_hparams({"lr": 2 * args.lr, "decay": args.decay, "batch": 3}, {"accuracy": 1.0})
"""


def test_setting_that_the_script_changes_after_it_was_typed_says_so(tmp_path):
    (tmp_path / "train.py").write_text(CHANGED)
    command = [sys.executable, "-m", "sacristan", "run", "train.py", "--lr", "0.25", "--decay", "0.5"]
    done = run(command, cwd=tmp_path, stderr=PIPE, text=True)
    assert done.returncode == 0, done.stderr
    with open_store(tmp_path / "my_runs") as store:
        [found] = store.find()
    values = {"lr": 0.5, "decay": 0.5, "momentum": 0.0, "batch": 3}
    assert {name: found.config[name] for name in found.config} == values
    assert origins(found) == {"lr": "the script", "decay": "command line"}


def test_values_of_two_libraries_are_kept_once(tmp_path):
    text = """
from sacristan.experiments.scripts.capturing import capture
for step in range(5):
    for library in ("one", "two"):
        acc = step if library == "one" else -step
        capture.log({"loss": 1 / (step + 1), "acc": acc}, step, library=library, call="log")
capture.log({"odd": "no number"}, 0, library="one", call="log")
"""
    done = run_script(text, tmp_path)
    assert done.returncode == 0
    assert done.stderr.count("loss is logged with one and two; equal points are recorded once") == 1
    assert "expected a number" in done.stderr
    with open_store(tmp_path / "my_runs") as store:
        [found] = store.find()
        assert found.metric("loss").steps.tolist() == [0, 1, 2, 3, 4]
        assert len(found.metric("acc")) == 9


SCALARS = """
import math, numpy, torch
from torch.utils.tensorboard import SummaryWriter

writer = SummaryWriter("events")
values = [0.5, 3, True, -0.0, math.nan, math.inf, 2**53 + 1, numpy.float32(0.25), numpy.float64(0.75),
          numpy.int64(7), torch.tensor(1.5), torch.tensor([2.5]), 0.5]
for step, value in enumerate(values):
    writer.add_scalar("mixed", value, step)
    writer.add_scalar(tag="named", scalar_value=value, global_step=step, walltime=12.5)
for step in (4, 4, 2, None, None, torch.tensor(9), numpy.int64(3), True, 2.0, 5):
    writer.add_scalar("steps", 1.0, step)
for wrong in ((), ("mixed",)):
    try:
        writer.add_scalar(*wrong)
    except TypeError as error:
        print(error)
try:
    writer.add_scalar("mixed", "a text", 0)
except Exception:
    print("no scalar")
for step in (7, 8, 8, 7):
    writer.add_scalar("steps", 2.0, step)
"""


def test_scalars_of_tags_seen_before_are_recorded_as_they_are(tmp_path):
    pytest.importorskip("tensorboard")
    done = run_script(SCALARS, tmp_path)
    assert done.returncode == 0, done.stderr
    missing = "SummaryWriter.add_scalar() missing {} required positional argument{}: {}"
    assert done.stdout.splitlines() == [
        missing.format(2, "s", "'tag' and 'scalar_value'"),
        missing.format(1, "", "'scalar_value'"),
        "no scalar",
    ]
    values = [0.5, 3.0, 1.0, -0.0, math.nan, math.inf, 2.0**53, 0.25, 0.75, 7.0, 1.5, 2.5, 0.5]
    with open_store(tmp_path / "my_runs") as store:
        [found] = store.find()
        for name in ("mixed", "named"):
            assert found.metric(name).steps.tolist() == [*range(len(values))]
            assert [*map(repr, found.metric(name).values.tolist())] == [*map(repr, values)]
        assert found.metric("steps").steps.tolist() == [4, 4, 2, 3, 4, 9, 3, 1, 2, 5, 7, 8, 8, 7]
        assert found.get("info.captured") == {"tensorboard": ["add_scalar"]}
    assert "is not recorded" not in done.stderr


STATES = """
import sys
from torch.utils.tensorboard import SummaryWriter
from sacristan.experiments.running.trial import Pruned
from sacristan.experiments.scripts.capturing import capture

writer = SummaryWriter("events")


def log(name, *steps):
    for step in steps:
        writer.add_scalar(name, step / 2, step)


def log_elsewhere(step):
    capture.log({"loss": step / 2}, step, library="other", call="log")


log("loss", 0, 1, 2)
log_elsewhere(2)
log_elsewhere(3)
log("loss", 3, 4)
log_elsewhere(4)

capture.start_run()
log("next", 0, 1)
capture.start_run(reinit=True)
log("next", 0, 1, 2)
log_elsewhere(5)

run, capture.run = capture.run, None
log("next", 3)
capture.run = object()
log("next", 4, 5)


class Ending:
    def log_scalar(self, *_):
        raise Pruned("enough")


capture.run = Ending()
try:
    log("next", 6)
except Pruned as error:
    print(error)
capture.run = run
log("next", 7)
"""


def test_scalars_are_recorded_beside_another_library_in_the_next_run_and_after_errors(tmp_path):
    pytest.importorskip("tensorboard")
    done = run_script(STATES, tmp_path)
    assert (done.returncode, done.stdout) == (0, "enough\n"), done.stderr
    assert done.stderr.count("SummaryWriter.add_scalar is not recorded (AttributeError") == 1
    assert done.stderr.count("loss is logged with tensorboard and other; equal points are recorded once") == 1
    with open_store(tmp_path / "my_runs") as store:
        first, second = store.find(sort="id")
        assert first.metric("loss").steps.tolist() == [0, 1, 2, 3, 4]
        assert first.metric("next").steps.tolist() == [0, 1]
        assert second.metric("next").steps.tolist() == [0, 1, 2, 7]
        assert second.metric("loss").steps.tolist() == [5]
        assert second.get("info.captured") == {"tensorboard": ["add_scalar"], "other": ["log"]}


NEXT_RUN = """
from torch.utils.tensorboard import SummaryWriter
from sacristan.experiments.scripts.capturing import capture
writer = SummaryWriter("events")
writer.add_scalar("loss", 1.0, 0)
capture.start_run()
capture.start_run(reinit=True)
writer.add_scalar("loss", 2.0, 0)
with SummaryWriter("other") as other:
    other.add_scalar("loss", 3.0, 0)
writer.add_scalar("loss", 4.0, 1)
"""


def test_writers_of_the_next_run_have_names_of_their_own(tmp_path):
    pytest.importorskip("tensorboard")
    done = run_script(NEXT_RUN, tmp_path)
    assert done.returncode == 0, done.stderr
    with open_store(tmp_path / "my_runs") as store:
        second = store.get("2")
        assert second.metric("loss").values.tolist() == [2.0, 4.0]
        assert second.metric("other/loss").values.tolist() == [3.0]


def test_adapter_of_another_package_is_found_by_its_entry_point(tmp_path):
    (tmp_path / "their_logger.py").write_text("def write(**values): return len(values)\n")
    (tmp_path / "their_adapter.py").write_text(
        "from sacristan.experiments.scripts.capturing import watched\n"
        "def attach(module, capture):\n"
        "    note = lambda _, **values: capture.log(values, library='theirs', call='write')\n"
        "    module.write = watched(module.write, note)\n"
    )
    package = tmp_path / "their-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: their\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[sacristan.loggers]\ntheir_logger = their_adapter\n")
    done = run_script("import their_logger\nprint(their_logger.write(loss=0.5))\n", tmp_path)
    # The folder of the script is the first on the path, so that its packages are found.
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    with open_store(tmp_path / "my_runs") as store:
        assert store.find()[0].metric("loss").values.tolist() == [0.5]


def test_nothing_is_recorded_without_a_run():
    unused = Capture()
    unused.log({"loss": 1.0}, 0, library="one", call="log")
    unused.config({"lr": 0.1}, library="one", call="config")
    unused.unknown("one", "watch")
    assert unused.run is None


EXPERIMENT = """
from torch.utils.tensorboard import SummaryWriter
from sacristan.experiments import Experiment
from sacristan.experiments.scripts.capturing import capture

ex = Experiment("wrapped")

@ex.config
def config():
    own = False

@ex.automain
def main(_run, own):
    with SummaryWriter("events") as writer:
        writer.add_hparams({"lr": 0.1}, {})
        for step in range(4):
            writer.add_scalar("loss", 1 / (step + 1), step)
            if own:
                _run.log_scalar("loss", 1 / (step + 1), step)
        writer.add_scalar("last", 0.5, 4)
    for step in range(2):
        capture.log({"odd": "no number"}, step, library="tensorboard", call="add_scalar")
    capture.log({"strange": "no number"}, 0, library="tensorboard", call="add_scalar")
"""


def test_experiment_that_logs_elsewhere_has_its_metrics(tmp_path):
    (tmp_path / "wrapped.py").write_text(EXPERIMENT)
    for words in ([], ["with", "own=True"]):
        done = run([sys.executable, "wrapped.py", *words], cwd=tmp_path, stderr=PIPE, text=True)
        assert done.returncode == 0, done.stderr
        named = [done.stderr.count(f"log_scalar('{name}')") for name in ("odd", "strange")]
        assert named == [int(not words), int(not words)]
    assert "this experiment logs its metrics itself; those of tensorboard are not recorded" in done.stderr
    with open_store(tmp_path / "my_runs") as store:
        for found, names in zip(store.find(sort="id"), (["last", "loss"], ["loss"]), strict=True):
            own = [name for name in found.metrics if not name.startswith("system/")]
            assert sorted(own) == names
            assert found.metric("loss").values.tolist() == [1 / (step + 1) for step in range(4)]
            assert "lr" not in found.config


FOR_EVER = """
import itertools, time
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter("events")
for step in itertools.count():
    writer.add_scalar("loss", 1 / (step + 1), step)
    if step % 100 == 0:
        time.sleep(0.001)
"""


@pytest.mark.parametrize("count", [2, pytest.param(40, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)])])
def test_script_that_is_killed_at_random_keeps_its_points(tmp_path, wait_for, count):
    chance = random.Random(count)
    for number in range(count):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "train.py").write_text(FOR_EVER)
        killed = signal.SIGKILL if number % 2 else signal.SIGTERM
        command = [sys.executable, "-m", "sacristan", "run", "train.py"]
        with Process(command, cwd=folder, stdout=PIPE, stderr=PIPE) as process:
            points = folder / "my_runs" / "1" / "metrics.bin"
            wait_for(lambda points=points: points.exists() and points.stat().st_size > 24 * 200, "points")
            time.sleep(chance.random())
            process.send_signal(killed)
            assert process.wait(60) == -killed
        with open_store(folder / "my_runs") as store:
            [found] = store.find()
            assert found.status == ("DEAD" if killed == signal.SIGKILL else "INTERRUPTED")
            series = found.metric("loss")
            assert series.steps.tolist() == list(range(len(series)))
            assert series.values.tolist() == [1 / (step + 1) for step in series.steps.tolist()]
            assert len(series) > 100


SPAWNED = """
import multiprocessing

def work(rank):
    import wandb
    from torch.utils.tensorboard import SummaryWriter
    if rank == 0:
        wandb.init(project="digits", config={"lr": 0.5}, mode="online")
        for step in range(3):
            wandb.log({"loss": step / 2, "image": wandb.Image([[0.0, 1.0]])})
        wandb.finish()
    with SummaryWriter(f"events-{rank}") as writer:
        writer.add_scalar(f"rank_{rank}", rank, 7)
    return __name__

if __name__ == "__main__":
    with multiprocessing.get_context("METHOD").Pool(2) as pool:
        print(pool.map(work, range(2), chunksize=1))
"""


@pytest.mark.parametrize("method", ["spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_numbers_that_spawned_processes_log_are_in_the_record_of_the_script(tmp_path, method):
    (tmp_path / "train.py").write_text(SPAWNED.replace("METHOD", method))
    command = [sys.executable, "-m", "sacristan", "run", "train.py"]
    done = run(command, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True, cold=True)
    assert (done.returncode, done.stdout) == (0, "['__mp_main__', '__mp_main__']\n"), done.stderr
    assert done.stderr.count("image: a process that multiprocessing has spawned logs numbers alone") == 1
    with open_store(tmp_path / "my_runs") as store:
        [found] = store.find()
        assert found.status == "COMPLETED"
        curves = {name: found.metric(name) for name in ("loss", "rank_0", "rank_1")}
    assert {name: (curve.steps.tolist(), curve.values.tolist()) for name, curve in curves.items()} == {
        "loss": ([0, 1, 2], [0.0, 0.5, 1.0]), "rank_0": ([7], [0.0]), "rank_1": ([7], [1.0]),
    }  # fmt: skip


@pytest.mark.slow
def test_spawned_processes_of_a_run_without_a_record_reach_no_server_either(tmp_path):
    (tmp_path / "train.py").write_text(SPAWNED.replace("METHOD", "spawn"))
    command = [sys.executable, "-m", "sacristan", "run", "train.py"]
    env = os.environ | {"SACRISTAN_MODE": "disabled"}
    done = run(command, cwd=tmp_path, env=env, stdout=PIPE, stderr=PIPE, text=True, cold=True)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events-0", "events-1", "train.py"]


@pytest.mark.slow
def test_spawning_without_a_guard_fails_as_under_python(tmp_path):
    text = "from torch.utils.tensorboard import SummaryWriter\nimport multiprocessing\n"
    text += "child = multiprocessing.get_context('spawn').Process(target=print)\nchild.start()\nchild.join()\n"
    (tmp_path / "train.py").write_text(text + "raise SystemExit(child.exitcode)\n")
    command = [sys.executable, "-m", "sacristan", "run", "train.py"]
    done = run(command, cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True, cold=True)
    assert done.returncode == 1
    assert "freeze_support()" in done.stderr
    assert "in_spawned" not in done.stderr
