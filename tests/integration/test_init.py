"""Runs of `sacristan.init`: the drop-in for W&B's API, its ends, several runs, ranks, modes, resuming."""

from __future__ import annotations

import _signal
import contextlib
import logging
import random
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import sacristan
from sacristan.experiments.running.trial import Pruned
from sacristan.experiments.scripts import tracking
from sacristan.experiments.scripts.history import LogWriter
from sacristan.ingredients import ConfigError
from sacristan.observers import ArtifactError
from sacristan.runs import open_store
from tests.processes import PIPE, Process, run


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("SACRISTAN_STORE", "SACRISTAN_MODE", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    yield
    while tracking.current_run() is not None:
        tracking.current_run().finish()


def recorded(number=1, folder="my_runs"):
    return open_store(folder).get(number)


def curve(run, name):
    return run.metric(name).steps.tolist(), run.metric(name).values.tolist()


def test_three_lines_record_config_metrics_and_what_is_noted():
    config = {"lr": 0.1, "model": {"width": 4}}
    described = {"name": "first", "notes": "a note", "tags": ["base line", "b"], "group": "g", "job_type": "train"}
    with sacristan.init("digits", config, **described) as tracked:
        sacristan.config.epochs = 3
        tracked.config.update({"seed": 7})
        sacristan.log({"loss": 1.0, "part": {"a": 1, "b": {"c": np.float32(2)}}})
        tracked.log({"loss": 0.5})
        sacristan.summary["best"] = np.float64(0.25)
        assert (tracked.step, tracked.name, tracked.tags) == (2, "first", ("base-line", "b"))
        assert (tracked.config.lr, tracked.config["model"]["width"], "seed" in tracked.config) == (0.1, 4, True)
        assert dict(tracked.summary) == {"loss": 0.5, "part.a": 1, "part.b.c": 2.0, "best": 0.25}
        assert tracked.url == (tracked.folder.absolute()).as_uri()
    found = recorded()
    assert (found.status, found.name, found.display_name) == ("COMPLETED", "digits", "first")
    assert (found.tags, found.note) == (["b", "base-line"], "a note")
    assert found.config == {**config, "epochs": 3, "seed": 7}
    assert curve(found, "loss") == ([0, 1], [1.0, 0.5])
    assert curve(found, "part.b.c") == ([0], [2.0])
    assert {name: found.info[name] for name in ("group", "job_type", "summary")} == {
        "group": "g", "job_type": "train", "summary": {"best": 0.25},
    }  # fmt: skip
    assert sacristan.run is None


@pytest.mark.parametrize("folder", [".", "out", Path("out")])
def test_folder_that_is_given_gets_my_runs_as_it_would_get_wandbs_folder(folder):
    for resume in (None, "auto"):
        with contextlib.suppress(RuntimeError), sacristan.init(dir=folder, resume=resume) as tracked:
            tracked.log({"loss": 1.0})
            raise RuntimeError
    assert [path.name for path in Path(folder).iterdir()] == ["my_runs"]
    assert [len(run.sessions) for run in open_store(Path(folder, "my_runs")).find()] == [2]


def test_what_no_metric_is_becomes_a_medium_or_is_left_out_with_a_warning(caplog):
    class Odd:
        def __str__(self):
            raise ValueError("no text")

    with sacristan.init() as tracked:
        images = [sacristan.Image(np.full((2, 2), shade, np.int64)) for shade in (0, 255)]
        tracked.log({"text": "hello", "images": images, "large": np.arange(100.0), "small": np.arange(3)})
        tracked.log({"odd": Odd(), "nothing": None, "huge": 10**400, "ok": True})
        tracked.log({"huge": 10**400})
    found = recorded()
    assert sorted((medium.name, medium.kind, medium.step) for medium in found.media) == [
        ("images", "image", 0), ("images", "image", 0), ("large", "histogram", 0), ("small", "text", 0),
        ("text", "text", 0),
    ]  # fmt: skip
    assert curve(found, "ok") == ([1], [1.0])
    assert found.info["summary"] == {"text": "hello", "small": "[0 1 2]"}
    warned = [record.getMessage().partition(":")[0] for record in caplog.records if record.levelno == logging.WARNING]
    assert warned == ["a Odd cannot be logged (ValueError", "huge"]


def test_log_of_no_mapping_is_rejected():
    with sacristan.init(mode="disabled") as tracked, pytest.raises(TypeError, match="got list, expected a dict"):
        tracked.log([1])


def test_define_metric_sets_steps_and_directions():
    with sacristan.init() as tracked:
        tracked.define_metric("val/*", step_metric="epoch")
        tracked.define_metric("val/accuracy", step_metric="epoch", summary="max")
        for epoch in (1, 2):
            tracked.log({"loss": 1.0})
            tracked.log({"epoch": epoch, "val/accuracy": epoch / 4})
        assert tracked.summary["val/accuracy"] == {"max": 0.5}
    assert curve(recorded(), "val/accuracy") == ([1, 2], [0.25, 0.5])
    assert recorded().info["better"] == {"val/accuracy": "max"}


def test_artifacts_are_logged_and_used(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("a")
    with sacristan.init() as tracked:
        draft = sacristan.Artifact("digits", type="dataset", description="small", metadata={"rows": 2})
        draft.add_dir("data", name="raw")
        with draft.new_file("made.txt") as stream:
            stream.write("made")
        with pytest.raises(ArtifactError, match="not logged yet"):
            draft.download()
        logged = tracked.log_artifact(draft, aliases=["best"]).wait()
        assert (logged.name, logged.files()) == ("digits:v1", ["made.txt", "raw/a.txt"])
        with pytest.raises(ArtifactError, match="it is logged, and a version never changes"):
            draft.add_file("data/a.txt")
        tracked.log_artifact("data/a.txt", name="one", type="text")
        used = tracked.use_artifact("entity/project/digits:latest")
        assert Path(used.download("copy"), "raw", "a.txt").read_text() == "a"
        assert (used.metadata, used.aliases) == ({"rows": 2, "description": "small"}, ["latest", "best"])
        assert Path(tracked.use_artifact("one").file("copy")).read_text() == "a"
        assert tracked.save("data/*.txt") == ["data/a.txt"]
    found = recorded()
    assert [entry["name"] for entry in found["artifacts_logged"]] == ["digits", "one"]
    assert "a.txt" in found.artifacts


def test_alerts_have_the_levels_of_both():
    with sacristan.init() as tracked:
        tracked.alert("title", "text", level="WARN")
        tracked.alert("only", level="error")
        with pytest.raises(ValueError, match="loud"):
            tracked.alert("no", level="loud")
    alerts = recorded().info["alerts"]
    assert [(alert["text"], alert["level"]) for alert in alerts] == [("title: text", "warning"), ("only", "error")]


def test_signals_that_end_a_process_are_caught_while_a_run_lasts():
    names = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGALRM")
    numbers = [getattr(signal, name) for name in names]
    before = [signal.signal(number, signal.SIG_DFL) for number in numbers]
    try:
        with sacristan.init():
            assert [callable(_signal.getsignal(number)) for number in numbers] == [True] * len(names)
            assert [signal.getsignal(number) for number in numbers] == [signal.SIG_DFL] * len(names)
        assert [_signal.getsignal(number) for number in numbers] == [signal.SIG_DFL] * len(names)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_watch_logs_histograms_of_gradients_and_parameters():
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 1)
    with sacristan.init() as tracked:
        tracked.watch(model, log="all", log_freq=2)
        for _ in range(4):
            model(torch.ones(1, 2)).sum().backward()
            tracked.log({"loss": 1.0})
        tracked.unwatch(model)
        model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(ValueError, match="got log='both'"):
            tracked.watch(model, log="both")
    names = [(medium.name, medium.step) for medium in recorded().media]
    assert sorted(names) == sorted(
        (f"{kind}/{weight}", step)
        for kind in ("gradients", "parameters")
        for weight in ("weight", "bias")
        for step in (1, 3)
    )


@pytest.mark.parametrize(
    ("name", "advice"),
    [("login", "nothing has to be logged in to"), ("plot", "log a sacristan.Table"), ("Api", "open_store")],
)
def test_name_of_wandb_that_is_not_here_says_what_to_use(name, advice):
    with pytest.raises(AttributeError, match=advice):
        getattr(sacristan, name)
    with pytest.raises(AttributeError, match=r"has no attribute 'nonsense'$"):
        sacristan.nonsense  # noqa: B018


def test_each_public_name_of_wandb_is_here_or_says_what_to_use():
    wandb = pytest.importorskip("wandb")
    tracked = sacristan.init(mode="disabled")
    for here, theirs in ((sacristan, wandb.__all__), (tracked, [name for name in dir(wandb.Run) if name[0] != "_"])):
        for name in (name for name in theirs if not hasattr(here, name)):
            with pytest.raises(AttributeError, match=f"{name!r}(; of W&B, it is not here)?: "):
                getattr(here, name)


def test_config_that_is_assigned_as_in_scripts_for_wandb_is_that_of_the_run():
    tracked = sacristan.init(config={"lr": 0.1})
    sacristan.config = {"epochs": 3}
    assert (sacristan.config.lr, sacristan.config["epochs"]) == (0.1, 3)
    tracked.finish()
    assert recorded().config == {"lr": 0.1, "epochs": 3}


def test_name_that_is_no_text_is_named():
    tracked = sacristan.init(mode="disabled")
    with pytest.raises(TypeError, match=r"log: got the name 1, expected a text; write log\(\{'1': value\}\)"):
        tracked.log({"loss": 0.5, 1: 2.0})


def test_run_says_what_it_has_not():
    tracked = sacristan.init(mode="disabled")
    with pytest.raises(AttributeError, match="the sources of a run are recorded by themselves"):
        tracked.log_code()
    with pytest.raises(AttributeError, match="a run has no 'foo'; it has alert, "):
        tracked.foo  # noqa: B018


@pytest.mark.parametrize("name", ["log", "define_metric"])
def test_function_without_a_run_says_to_start_one(name):
    with pytest.raises(ConfigError, match=rf"sacristan\.{name}: there is no run; start one first"):
        getattr(sacristan, name)({"loss": 1})
    with pytest.raises(ConfigError, match=r"sacristan\.config: there is no run"):
        sacristan.config.lr  # noqa: B018
    assert sacristan.finish() is None


def test_runs_one_after_another_have_their_own_points():
    for seed in range(3):
        tracked = sacristan.init(config={"seed": seed}, reinit=True)
        tracked.log({"loss": float(seed)})
    tracked.finish()
    tracked.finish()
    for seed in range(3):
        found = recorded(seed + 1)
        assert (found.status, found.config, curve(found, "loss")) == ("COMPLETED", {"seed": seed}, ([0], [float(seed)]))


def test_second_init_returns_the_run_that_has_not_ended(caplog):
    first = sacristan.init()
    assert sacristan.init() is first
    assert "has not ended, and is returned" in caplog.text


def test_log_after_the_end_warns_once(caplog):
    tracked = sacristan.init()
    tracked.finish(exit_code=3)
    for _ in range(2):
        tracked.log({"loss": 1.0})
    assert [record.getMessage() for record in caplog.records if "log:" in record.getMessage()] == [
        "log: the run has ended; what is logged from here on is lost"
    ]
    assert recorded().status == "FAILED"


@pytest.mark.parametrize("way", ["argument", "variable", "rank"])
def test_disabled_run_takes_everything_and_records_nothing(way, monkeypatch, tmp_path):
    if way == "variable":
        monkeypatch.setenv("SACRISTAN_MODE", "disabled")
    if way == "rank":
        for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("MASTER_PORT", "1")
    with sacristan.init(config={"lr": 1}, mode="disabled" if way == "argument" else None) as tracked:
        tracked.log({"loss": 1.0})
        tracked.config.update({"more": 2})
        tracked.alert("no")
        tracked.log_artifact(sacristan.Artifact("a"))
        tracked.save("*")
        assert (tracked.disabled, tracked.folder, tracked.summary["loss"]) == (True, None, 1.0)
        assert dict(tracked.config) == {"lr": 1, "more": 2}
    assert not (tmp_path / "my_runs").exists()


def test_unknown_mode_is_rejected():
    with pytest.raises(ConfigError, match="got mode='quiet', expected one of online"):
        sacristan.init(mode="quiet")


def test_store_of_the_environment_is_used(monkeypatch, tmp_path):
    monkeypatch.setenv("SACRISTAN_STORE", str(tmp_path / "elsewhere"))
    sacristan.init().finish()
    assert recorded(folder=tmp_path / "elsewhere").status == "COMPLETED"


def test_threads_log_into_one_run():
    with sacristan.init() as tracked:
        threads = [threading.Thread(target=lambda: [tracked.log({"a": 1}) for _ in range(100)]) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(curve(recorded(), "a")[0]) == list(range(300))


def test_record_of_an_id_is_continued():
    for loss in (2.0, 1.0):
        with sacristan.init(id="mine", resume="allow") as tracked:
            assert tracked.id == "mine"
            tracked.log({"loss": loss})
    assert curve(recorded(), "loss") == ([0, 1], [2.0, 1.0])
    with pytest.raises(ConfigError, match="is a run of the id 'mine' already"):
        sacristan.init(id="mine", resume="never")
    with pytest.raises(ConfigError, match="has no run of the id 'other'"):
        sacristan.init(id="other", resume="must")
    with pytest.raises(ConfigError, match="got resume='allow' without an id"):
        sacristan.init(resume="allow")
    with pytest.raises(ConfigError, match="got resume='maybe'"):
        sacristan.init(resume="maybe")


def test_auto_continues_the_unfinished_run_of_the_same_settings_and_name():
    def interrupted(**options):
        tracked = sacristan.init(resume="auto", **options)
        tracked.log({"loss": 1.0})
        number = int(tracked.folder.name)
        tracked._end(KeyboardInterrupt())
        return number

    assert interrupted(config={"lr": 1}) == 1
    assert interrupted(config={"lr": 2}) == 2
    assert interrupted(config={"lr": 1}) == 1
    assert interrupted(config={"lr": 1}, name="named") == 3
    assert interrupted(config={"lr": 1}, name="named") == 3
    sacristan.init(config={"lr": 2}, resume="auto").finish()
    assert interrupted(config={"lr": 2}) == 4


SCRIPT = """
import os, signal, sys
import sacristan

run = sacristan.init(config={"lr": 0.1}, name="one")
for step in range(50):
    run.log({"loss": 1 / (step + 1)})
run.log({"last": 1}, commit=False)
"""
ENDS = {
    "ends": ("", 0, "COMPLETED"),
    "raises": ("1 / 0", 1, "FAILED"),
    "raises within with": ("with run: 1 / 0", 1, "FAILED"),
    "exits with a code": ("sys.exit(3)", 3, "FAILED"),
    "is interrupted": ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT, "INTERRUPTED"),
    "is terminated": ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, "INTERRUPTED"),
    "is terminated in code of the record that does not end": (
        "from sacristan.experiments.scripts import session; session._MOST_DELAYS = 3\n"
        "stuck = os.path.join(sacristan.observers.__path__[0], 'stuck.py')\n"
        "exec(compile('os.kill(os.getpid(), signal.SIGTERM)\\nwhile True: signal.pause()', stuck, 'exec'))",
        -signal.SIGTERM, "INTERRUPTED",
    ),
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, "DEAD"),
    "forks": (
        "pid = os.fork()\nif pid == 0:\n    run.log({'child': 1}, step=60); os._exit(0)\nos.waitpid(pid, 0)", 0,
        "COMPLETED",
    ),
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_record_says_how_the_script_ended_and_has_every_point(tmp_path, end):
    code, exit_code, status = ENDS[end]
    (tmp_path / "train.py").write_text(SCRIPT + code)
    done = run([sys.executable, "train.py"], cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True)
    assert done.returncode == exit_code, done.stderr
    found = recorded()
    assert (found.status, found.name, found.display_name) == (status, "train", "one")
    assert ("Traceback" in done.stderr) == ("raises" in end or end == "is interrupted")
    assert (len(found.metric("loss")), curve(found, "last")) == (50, ([50], [1.0]))
    if "raises" in end:
        assert "ZeroDivisionError" in "".join(found["fail_trace"])
    if end == "forks":
        assert curve(found, "child") == ([60], [1.0])


ENDS_BY_SYSTEM_EXIT = {
    "raise SystemExit(3)": 3,
    "raise SystemExit('text')": 1,
    "def main(): raise SystemExit(4)\nmain()": 4,
    "raise SystemExit": 0,
    "def main(): return None\nraise SystemExit(main())": 0,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("code", ENDS_BY_SYSTEM_EXIT)
def test_raised_system_exit_is_seen_or_said_to_be_unknown(tmp_path, code):
    (tmp_path / "train.py").write_text(SCRIPT + code)
    done = run([sys.executable, "train.py"], cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True, cold=True)
    assert done.returncode == ENDS_BY_SYSTEM_EXIT[code], done.stderr
    found = recorded()
    is_seen = sys.version_info >= (3, 12)
    assert found.status == ("FAILED" if is_seen and done.returncode else "COMPLETED")
    assert found["info"].get("exit_code") == (None if is_seen else "unknown")
    assert ("does not tell its code" in done.stderr) == (not is_seen)


QUIET_ENDS = {
    "sys.excepthook = lambda *args: print('mine')\n1 / 0": ("FAILED", 1),
    "try: raise SystemExit(3)\nexcept SystemExit: pass": ("COMPLETED", 0),
    "try: sys.exit(3)\nexcept SystemExit: pass": ("COMPLETED", 0),
    "exec('try: sys.exit(3)\\nexcept SystemExit: pass')\nsys.exit(5)": ("FAILED", 5),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("code", QUIET_ENDS)
def test_end_is_seen_whatever_the_script_catches_and_replaces(tmp_path, code):
    (tmp_path / "train.py").write_text(SCRIPT + code)
    done = run([sys.executable, "train.py"], cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True, cold=True)
    found = recorded()
    assert (found.status, done.returncode) == QUIET_ENDS[code]
    assert "exit_code" not in found["info"]
    assert "does not tell" not in done.stderr


ROWS_OF_A_CHILD = """
import os
import sacristan

run = sacristan.init()
names = [f"metric_{number}" for number in range(5)]
for step in range(10):
    run.log(dict.fromkeys(names, float(step)), step=step)
pid = os.fork()
if pid == 0:
    for step in range(10, 15):
        run.log(dict.fromkeys(names, float(step)), step=step)
    os._exit(0)
os.waitpid(pid, 0)
for step in range(15, 20):
    run.log(dict.fromkeys(names, float(step)), step=step)
"""


def test_rows_of_a_forked_child_are_the_runs_and_overwrite_none(tmp_path):
    (tmp_path / "train.py").write_text(ROWS_OF_A_CHILD)
    done = run([sys.executable, "train.py"], cwd=tmp_path, stderr=PIPE, text=True)
    assert done.returncode == 0, done.stderr
    for number in range(5):
        steps, values = curve(recorded(), f"metric_{number}")
        assert sorted(steps) == list(range(20))
        assert values == [float(step) for step in steps]


ROWS_FOR_EVER = """
import itertools
import sacristan

run = sacristan.init()
for step in itertools.count():
    run.log({f"metric_{number}": step + number / 32 for number in range(20)}, step=step)
"""


@pytest.mark.parametrize("count", [2, pytest.param(60, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)])])
def test_script_that_is_killed_while_it_logs_rows_keeps_each_of_them(tmp_path, wait_for, count):
    chance = random.Random(count)
    for number in range(count):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "train.py").write_text(ROWS_FOR_EVER)
        with Process([sys.executable, "train.py"], cwd=folder, stdout=PIPE, stderr=PIPE) as process:
            points = folder / "my_runs" / "1" / "metrics.bin"
            wait_for(lambda points=points: points.exists() and points.stat().st_size > 24 * 200, "points")
            time.sleep(chance.random() / 2)
            process.send_signal(signal.SIGKILL)
            process.wait(60)
        found = recorded(folder=folder / "my_runs")
        assert found.status == "DEAD"
        lengths = []
        for metric in range(20):
            steps, values = curve(found, f"metric_{metric}")
            assert steps == list(range(len(steps)))
            assert values == [step + metric / 32 for step in steps]
            lengths.append(len(steps))
        # The last row may be there in part: its metrics in order.
        assert lengths == sorted(lengths, reverse=True)
        assert lengths[0] - lengths[-1] <= 1


def test_bad_value_is_named_alone_and_the_others_are_logged(caplog):
    with sacristan.init() as tracked:
        for step in range(4):
            tracked.log({"good": 0.5, "bad": 10**400, "other": step}, step=step)
    assert curve(recorded(), "good") == ([0, 1, 2, 3], [0.5] * 4)
    assert curve(recorded(), "other") == ([0, 1, 2, 3], [0.0, 1.0, 2.0, 3.0])
    [warned] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warned.startswith("bad: log_scalar('bad') in test_init.py, line ")
    assert "good" not in warned


def test_values_beside_that_which_ends_a_trial_are_logged():
    ended = []

    class Trial:
        def log_quickly(self, values, step):
            return values

        def log(self, values, step):
            ended.append(values)
            if "loss" in values:
                raise Pruned("enough")

    with pytest.raises(Pruned, match="enough"):
        LogWriter(Trial()).write({"loss": 0.5, "other": 1.0}, 3)
    assert ended == [{"loss": 0.5}, {"other": 1.0}]
