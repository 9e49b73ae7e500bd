"""Trainings that tests start as processes, cut off, continue, and compare with those that were never cut off."""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sacristan.ingredients.checkpoints.files import load_checkpoint
from sacristan.observers import read_media, read_metrics, read_table
from sacristan.observers.record.points import is_rewound
from sacristan.observers.record.points.intact_points import read_points
from sacristan.observers.record.schema import read_names
from tests.processes import DEVNULL, STDOUT, Process

LAB = Path(__file__).parents[2]
TIMEOUT_S = 200.0


class Training(Process):
    """A process that leads a group of its own, and writes what it says to a file."""

    def __init__(self, command: list[str], folder: Path, environment: Mapping[str, str], cold: bool) -> None:
        self.said = folder / f"said-{len(list(folder.glob('said-*')))}.txt"
        with self.said.open("w") as stream:
            super().__init__(
                command,
                cwd=folder,
                env=environment,
                stdin=DEVNULL,
                stdout=stream,
                stderr=STDOUT,
                start_new_session=True,
                cold=cold,
            )

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until a condition holds, or the process has ended; return what the condition gave, or None."""
        deadline = time.monotonic() + TIMEOUT_S
        while not (found := condition()):
            if self.poll() is not None:
                return condition() or None
            assert time.monotonic() < deadline, f"waited {TIMEOUT_S} s in vain for {what}: {self.output()}"
            time.sleep(0.0005)
        return found

    def end(self, code: int = 0) -> str:
        """Wait for the end with an exit code, and return what was said."""
        found = self.wait(TIMEOUT_S)
        assert found == code, f"ended with {found}, expected {code}: {self.output()}"
        return self.output()

    def output(self) -> str:
        return self.said.read_text()


class Lab:
    """A folder with records in `my_runs`, in which `exp.py` is started with settings."""

    def __init__(self, folder: Path, settings: list[str], beat_interval_s: float) -> None:
        folder.mkdir()
        self.folder, self.settings, self.beat_interval_s = folder, settings, beat_interval_s
        self.processes: list[Training] = []

    def run(self, number: int = 1) -> Path:
        """Return the folder of a run."""
        return self.folder / "my_runs" / str(number)

    def runs(self) -> list[str]:
        """Return the names of the runs."""
        return sorted(path.name for path in (self.folder / "my_runs").iterdir() if path.name.isdigit())

    def start(self, *settings: str, resume: Path | None = None, cold: bool = False) -> Training:
        """Start a training, or continue the one recorded in the folder `resume`, with that record's config."""
        words = ["with", *(self.settings if resume is None else [str(resume / "config.json")]), *settings]
        command = [sys.executable, str(LAB / "exp.py"), "--beat-interval", str(self.beat_interval_s), *words]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(LAB), str(self.folder)])}
        environment |= {"SACRISTAN_RESUME": str(resume)} if resume is not None else {}
        self.processes.append(Training(command, self.folder, environment, cold))
        return self.processes[-1]


@pytest.fixture(scope="module")
def make_lab(tmp_path_factory) -> Iterator[Callable[..., Lab]]:
    """Make a folder to train in: `make_lab(settings)`; what still runs when the module's tests end is killed."""
    labs: list[Lab] = []

    def make(settings: list[str], beat_interval_s: float = 0.05) -> Lab:
        labs.append(Lab(tmp_path_factory.mktemp("lab") / "work", settings, beat_interval_s))
        return labs[-1]

    yield make
    for process in (process for lab in labs for process in lab.processes):
        process.close()


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    """A folder with 400 noisy 8x8 images of five classes: `images/CLASS/N.png`, `arrays.npz`, `shards/K.tar`."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    labels = np.arange(400) % 5
    pixels = random.uniform(0, 255, (5, 8, 8))[labels] / 2 + random.uniform(0, 255, (400, 8, 8)) / 2
    for number, (image, label) in enumerate(zip(pixels.astype(np.uint8), labels, strict=True)):
        path = folder / "images" / "abcde"[label] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    (folder / "shards").mkdir()
    for shard in range(4):
        with tarfile.open(folder / "shards" / f"{shard}.tar", "w") as archive:
            for number in range(shard, 400, 4):
                archive.add(folder / "images" / "abcde"[labels[number]] / f"{number}.png", f"{number}.png")
                label = tarfile.TarInfo(f"{number}.cls")
                label.size = 1
                archive.addfile(label, io.BytesIO(str(labels[number]).encode()))
    np.savez(folder / "arrays.npz", x=pixels[:, None].astype(np.float32), y=labels)
    return folder


def entry(run: Path, name: str = "run.json") -> dict[str, Any]:
    """Return what stands in a file of a run; nothing if it is not there yet."""
    try:
        return json.loads((run / name).read_bytes())
    except FileNotFoundError:
        return {}


def sessions(run: Path) -> list[dict[str, Any]]:
    """Return the history of a run; one of one session does not have any."""
    found = entry(run)
    return found.get("sessions") or ([{"step": 0, "status": found["status"]}] if found else [])


def num_logged(run: Path) -> int:
    """Return how many points of the training are in a run's journal."""
    names = read_names(run) if (run / "metrics.names.jsonl").exists() else {}
    ours = [number for number, (name, _) in names.items() if is_rewound(name)]
    return int(np.isin(read_points(run)["metric"], ours).sum())


def outcome(run: Path) -> dict[str, Any]:
    """Return all that a run has left which does not depend on when and where it ran, by name, bit for bit."""
    found: dict[str, Any] = {"checkpoints": sorted(path.name for path in (run / "checkpoints").iterdir())}
    for name in (name for name in found["checkpoints"] if name.endswith(".pt")):
        state = load_checkpoint(run / "checkpoints" / name)
        found |= _leaves({key: value for key, value in state.items() if key != "run"}, name)
    in_sacred = entry(run, "metrics.json")
    for name, series in read_metrics(run).items():
        assert max(Counter(series.steps.tolist()).values()) == 1, f"{name} has points twice"
        if is_rewound(name):
            found[f"metric {name}"] = (series.steps.tolist(), [value.hex() for value in series.values.tolist()])
            found[f"metric {name} for Sacred"] = (in_sacred[name]["steps"], repr(in_sacred[name]["values"]))
            found[f"number of {name}"] = entry(run, "summary.json")[name]["count"]
    media = read_media(run)
    found["media"] = [(record.name, record.kind, record.step, record.sha256, record.meta) for record in media]
    found["files of media"] = sorted(path.name for path in (run / "media").iterdir())
    tables = [read_table(record.path) for record in media if record.kind == "table"]
    found["tables"] = [repr([_name_of(cell) for row in rows for cell in row]) for _, rows in tables]
    found |= {name: entry(run)[name] for name in ("status", "result")}
    info = entry(run, "info.json")
    assert info.pop("speed", {"steps_per_s": 1})["steps_per_s"] > 0  # no two sessions are equally fast
    return found | {"info": info, "config": entry(run, "config.json")}


def _name_of(cell: Any) -> Any:
    return cell.name if isinstance(cell, Path) else cell


def _leaves(value: Any, name: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return {key: leaf for part in value for key, leaf in _leaves(value[part], f"{name}: {part}").items()}
    if isinstance(value, list | tuple):
        return {
            key: leaf for place, part in enumerate(value) for key, leaf in _leaves(part, f"{name}: {place}").items()
        }
    if isinstance(value, torch.Tensor):
        raw = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return {name: (str(value.dtype), tuple(value.shape), raw.hex())}
    return {name: repr(value)}  # which has all bits of a float, and lets NaN be itself


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return what is not the same in two outcomes: name, and the beginning of both."""
    names = [name for name in {**one, **other} if name not in one or name not in other or one[name] != other[name]]
    return [f"{name}: {one.get(name)!r:.200} and {other.get(name)!r:.200}" for name in names]


@pytest.fixture(scope="session")
def judge() -> Any:
    """Functions that inspect runs: `entry`, `sessions`, `num_logged`, `outcome`, `differences`."""
    import types

    return types.SimpleNamespace(
        entry=entry, sessions=sessions, num_logged=num_logged, outcome=outcome, differences=differences
    )
