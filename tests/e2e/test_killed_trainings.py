"""Trainings that are killed with -9 at random moments, and end with the same bits as those that were never killed.

The moments are drawn from the seed in the environment variable SEED, 1 by default; a failure lists them.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time

import pytest

from sacristan.observers.record.points.intact_points import read_points
from sacristan.observers.record.schema import read_names

# Dozens of processes that each import torch, on a machine that may be busy.
pytestmark = pytest.mark.timeout(900)

ARRAYS = ("data.name=npz", "data.path={data}/arrays.npz")
SHARDS = ("data.name=tar", "data.path={data}/shards", 'data.columns=["png","cls"]', "data.shuffle_buffer=24")
IMAGES = ("data.name=image_folder", "data.path={data}/images")
AUGMENT = ("data.augment.flip=True", "data.augment.crop=1", "data.augment.rotate=5.0")
WORKERS = ("data.num_workers=2",)
ACCUMULATE = ("amp.accumulate=2", "data.batch_size=4")
MLP = ("model.name=mlp", "model.options.hidden=[32]", "model.options.dropout=0.3")
CNN = ("model.name=cnn", "model.options.widths=[4,8]", "model.options.dropout=0.2")
VIT = (
    "model.name=vit",
    "model.options.patch=4",
    "model.options.width=16",
    "model.options.depth=1",
    "model.options.heads=2",
    "model.options.dropout=0.2",
)
WARM_UP = ("scheduler.name=CosineAnnealingLR", "scheduler.interval=step", "scheduler.warmup_steps=11")
PLATEAU = ("scheduler.name=ReduceLROnPlateau", "scheduler.options.patience=0", "scheduler.options.factor=0.5")
OFF, FLOAT16, BFLOAT16 = ("amp.dtype=off",), ("amp.dtype=float16",), ("amp.dtype=bfloat16",)
COMMON = (
    "resume=auto",
    "data.batch_size=8",
    "data.val_fraction=0.25",
    "data.test_fraction=0.25",
    "training.log_interval=4",
    "checkpoint.interval_steps=7",
    "lr=0.01",
    "epochs=8",
)

TRAININGS = {
    # Ends early, as its rate is so high that validations get worse.
    "mlp": (*ARRAYS, *MLP, *OFF, *PLATEAU, "optimizer.name=SGD", "lr=2.0", "training.patience=3", "epochs=60"),
    "mlp-float16": (*IMAGES, *WORKERS, *MLP, *FLOAT16, *ACCUMULATE, *WARM_UP, "amp.clip_norm=1.0"),
    "mlp-bfloat16": (
        *(*ARRAYS, *MLP, *BFLOAT16, *AUGMENT, "epochs=20", "checkpoint.keep=1"),
        *("scheduler.name=OneCycleLR", "scheduler.options.max_lr=0.02", "scheduler.interval=step"),
    ),
    "cnn": (*IMAGES, *CNN, *OFF, *AUGMENT, *PLATEAU, "checkpoint.keep=3", "training.average=swa"),
    "cnn-float16": (
        *(*IMAGES, *WORKERS, *CNN, *FLOAT16, *AUGMENT, *ACCUMULATE, *WARM_UP),
        *("training.average=ema", "training.average_decay=0.9"),
    ),
    "cnn-tar": (
        *(*SHARDS, *WORKERS, *CNN, *OFF, *ACCUMULATE, "data.epoch_samples=220"),
        'data.transforms=["flip","cutmix",{{"name":"random_crop","size":8,"padding":1}}]',
    ),
    "cnn-bfloat16": (*ARRAYS, *CNN, *BFLOAT16, *AUGMENT, *WARM_UP, "training.val_interval=3"),
    "vit": (*ARRAYS, *VIT, *OFF, *AUGMENT, *ACCUMULATE, "scheduler.name=StepLR", "scheduler.options.step_size=2"),
    # Starts with a scale that overflows, so that steps are skipped.
    "vit-float16": (
        *(*ARRAYS, *VIT, *FLOAT16, *WARM_UP, "amp.init_scale=1e12", "amp.growth_interval=9"),
        'model.unfreeze=[{{"epoch": 3, "match": ["embed", "positions"]}}, {{"epoch": 5, "match": "encoder"}}]',
    ),
    "vit-bfloat16": (
        *IMAGES,
        *WORKERS,
        *VIT,
        *BFLOAT16,
        *AUGMENT,
        "training.patience=3",
        "training.monitor=val/accuracy",
    ),
}

# When a process is killed, but for random milliseconds:
#   launch      it was just started, and has not taken up the run yet, or only just
#   begin       its session has begun: before data, model and state are there
#   step        it has logged so many points
#   saving      a checkpoint is being written
#   validation  it has logged all points before one
#   end         it has logged all points: the last state is written, the test part measured
MOST_MS = {"launch": 2500, "begin": 400, "step": 20, "saving": 2, "validation": 30, "end": 300}


def settings_of(name, data, *more):
    return [word.format(data=data) for word in (*COMMON, *TRAININGS[name], *more)]


@pytest.fixture(scope="module")
def whole(make_lab, data):
    """Return the folder of a training that nobody has killed."""
    done = {}

    def train(name, *more):
        if (name, *more) not in done:
            lab = make_lab(settings_of(name, data, *more))
            lab.start().end()
            done[name, *more] = lab.run()
        return done[name, *more]

    return train


class Killing:
    """One training that is killed again and again.

    Attributes:
        story: What was done to it.
        num_kills: How many processes were killed.
    """

    def __init__(self, lab, whole, judge, chance, cold):
        self.lab, self.judge, self.chance, self.cold = lab, judge, chance, cold
        self.run = lab.run()
        self.story = []
        self.num_kills = 0
        names = read_names(whole)
        logged = [names[number][0] for number in read_points(whole)["metric"]]
        logged = [name for name in logged if not name.startswith("system/")]
        self.total = len(logged)
        # How many points there are when a validation begins.
        self.validations = [
            place
            for place, name in enumerate(logged)
            if name.startswith("val/") and not logged[place - 1].startswith("val/")
        ]

    def start(self):
        """Start or continue it, in one of the two ways; the first time cold, if anything is to be."""
        named = self.run.exists() and self.chance.random() < 0.5
        return self.lab.start(resume=self.run if named else None, cold=self.cold and not self.story)

    def kill(self, kind, kills_left):
        """Start it, kill it at a moment of a kind, and tell whether something is left to do."""
        before = len(self.judge.sessions(self.run))
        process = self.start()
        where = self._wait(process, kind, before, kills_left)
        delay_ms = self.chance.uniform(0, MOST_MS[kind])
        killed_at = time.monotonic() + delay_ms / 1000
        # On a fast machine a whole training ends in the milliseconds in which it only starts on a slow one.
        while time.monotonic() < killed_at and not (kind == "launch" and len(self.judge.sessions(self.run)) > before):
            time.sleep(min(0.005, max(0.0, killed_at - time.monotonic())))
        saving = self._temporary()
        with contextlib.suppress(ProcessLookupError):  # it was quicker
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        left = f"{self.judge.num_logged(self.run)} points{', half a checkpoint' * bool(saving)}"
        self.story.append(f"{kind} {where}, {delay_ms:.1f} ms later: ended with {code}, left {left}")
        assert code in (0, -signal.SIGKILL), f"{self.tell()}\n{process.output()}"
        begun = len(self.judge.sessions(self.run)) - before
        assert begun == 1 or (begun == 0 and kind == "launch"), self.tell()
        self.num_kills += code != 0
        # Once that is written, nothing is missing, and what it was killed in was the end of the process alone.
        return self.judge.entry(self.run)["status"] == "RUNNING"

    def _wait(self, process, kind, before, kills_left):
        """Wait for the moment, and tell how many points there were to be."""
        if kind == "launch":
            return ""
        process.until(lambda: len(self.judge.sessions(self.run)) > before, "the session")
        if kind == "begin":
            return ""
        # What an earlier session logged beyond its last state is taken back first.
        process.until(lambda: (self.judge.sessions(self.run) or [{}])[-1].get("step") is not None, "the state")
        there = self.judge.num_logged(self.run)
        target = there + 1 + int(self.chance.random() * (self.total - there) / kills_left)
        if kind == "validation":
            target = next((place for place in self.validations if place >= target), self.total)
        target = self.total if kind == "end" else min(target, self.total)
        process.until(lambda: self.judge.num_logged(self.run) >= target, f"{target} points")
        if kind == "saving":
            process.until(self._temporary, "a checkpoint")
        return f"at {target} of {self.total} points"

    def _temporary(self):
        try:
            return [entry.name for entry in os.scandir(self.run / "checkpoints") if entry.name.endswith(".tmp")]
        except FileNotFoundError:
            return []

    def tell(self):
        return f"SEED={os.environ.get('SEED', 1)}\n" + "\n".join(self.story)


def check_killed(lab, whole, judge, kinds, chance, *, cold=True):
    """Kill a training at moments of these kinds, let it end, and compare it with one that was not killed."""
    killing = Killing(lab, whole, judge, chance, cold)
    for place, kind in enumerate(kinds):
        if not killing.kill(kind, len(kinds) - place):
            break
    else:
        process = killing.start()
        assert process.wait() == 0, f"{killing.tell()}\n{process.output()}"
    print(killing.tell())
    assert judge.differences(judge.outcome(killing.run), judge.outcome(whole)) == [], killing.tell()
    statuses = [session["status"] for session in judge.sessions(killing.run)]
    assert statuses == ["DEAD"] * (len(statuses) - 1) + ["COMPLETED"], killing.tell()
    assert lab.runs() == ["1"], killing.tell()
    return killing.num_kills


@pytest.mark.parametrize(
    ("name", "more", "kinds", "cold"),
    [
        pytest.param("cnn-float16", ("epochs=3", "data.limit=200"), ("saving",), True, marks=pytest.mark.nightly),
        ("vit-float16", ("data.limit=240",), ("begin", "validation", "end"), False),
    ],
)
def test_training_killed_at_random_moments_ends_with_the_same_bits(
    make_lab, data, whole, judge, name, more, kinds, cold
):
    chance = random.Random(f"{os.environ.get('SEED', 1)} {name}")
    lab = make_lab(settings_of(name, data, *more))
    check_killed(lab, whole(name, *more), judge, kinds, chance, cold=cold)


@pytest.mark.nightly
@pytest.mark.parametrize("name", TRAININGS)
def test_training_killed_many_times_ends_with_the_same_bits(make_lab, data, whole, judge, name):
    chance = random.Random(f"{os.environ.get('SEED', 1)} {name}")
    kinds = [*chance.sample(list(MOST_MS)[:-1], 5), "end"]
    if kinds[0] == "launch":  # which would leave no run yet to continue
        kinds[:2] = kinds[1::-1]
    beat_interval_s = chance.choice([0.02, 0.05, 0.3])
    lab = make_lab(settings_of(name, data), beat_interval_s)
    # One that comes too late, as the training has ended, is the last.
    assert check_killed(lab, whole(name), judge, kinds, chance) >= 3
