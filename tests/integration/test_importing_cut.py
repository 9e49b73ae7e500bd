"""Sources that are cut, flipped or copied, and imports that are killed: what is whole arrives once, damage is said."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import warnings

import numpy as np
import pytest

from sacristan.runs import ForeignError, import_foreign, open_store
from sacristan.runs.transfer import foreign
from sacristan.runs.transfer.trackers import reader_for
from tests.trackers import digest_of, num_torn, points_of, unpack

# By source: the file to cut, and further ones.
FILES = {
    "csv": ("a.csv", ()),
    "mlflow.db": ("mlflow.db", ()),
    "mlflow": ("*/cd79*/metrics/train/loss", ("*/cd79*/meta.yaml", "*/cd79*/params/lr", "5917*/meta.yaml")),
    "wandb": ("*d4k2qnid/*.wandb", ("*d4k2qnid/files/output.log",)),
    "trackio": ("digits.db", ("media/digits/first/51/*.png",)),
    "neptune": ("**/RUN-1*_part_1.parquet", ("**/RUN-1*_part_0.parquet", "**/RUN-1*_part_2.parquet")),
    "dvclive": ("**/loss.tsv", ("**/params.yaml", "**/metrics.json", "**/last.png")),
    "hydra": (
        "outputs/*/12-00-00/metrics.csv",
        ("outputs/*/12-00-00/tb/*", "outputs/*/12-00-00/.hydra/config.yaml", "outputs/*/12-00-00/.hydra/hydra.yaml"),
    ),
    "comet": ("3af7*.zip", ()),
    "clearml": ("**/offline-b9f6*/metrics.jsonl", ("**/offline-b9f6*/task.json", "**/offline-573*.zip")),
    "tensorboard": ("first/*", ("second/*",)),
    "jsonl": ("a.jsonl", ()),
    "lightning": ("version_0/metrics.csv", ("version_0/hparams.yaml",)),
}  # fmt: skip
# The archive and folder of a sample, and the reader.
SAMPLE = {
    "mlflow.db": ("mlflow", ".", "mlflow"), "mlflow": ("mlflow", "files", "mlflow"),
    "wandb": ("wandb", "wandb", "wandb"), "trackio": ("trackio", "trackio", "trackio"),
    "neptune": ("neptune", "exports", "neptune"), "dvclive": ("dvclive", "repo", "dvclive"),
    "hydra": ("hydra", "hydra", "hydra"), "comet": ("comet", "comet", "comet"),
    "clearml": ("clearml", "clearml", "clearml"),
}  # fmt: skip
PACKAGES = {"wandb": "wandb", "neptune": "pyarrow", "hydra": "tensorboard", "tensorboard": "tensorboard"}
# Files of which only whole ones can be read.
ALL_OR_NONE = (".zip", ".parquet", ".db")
# Files whose checksums find each flipped byte.
CHECKED = (".wandb", ".zip")
# Files without points.
POINTLESS = (".yaml", ".json", ".png", ".log")
OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "sqlite3.connect"}
ROWS = [("step", "loss", "val"), *((step, repr(1 / (step + 1)), step % 3 or "") for step in range(40))]


@pytest.fixture(scope="module")
def event_files(tmp_path_factory):
    """Return a folder with two runs of TensorBoard."""
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    folder = tmp_path_factory.mktemp("events")
    for name in ("first", "second"):
        with SummaryWriter(str(folder / name), filename_suffix=f".{name}") as writer:
            for step in range(40):
                writer.add_scalar("loss", 1 / (step + 1), step)
    return folder


@pytest.fixture
def source(tmp_path, request):
    """Return a function that makes the source of a name: what to import, the folder of its files, and the reader."""

    def make(name):
        if name in PACKAGES:
            pytest.importorskip(PACKAGES[name])
        folder = tmp_path / "from"
        if name in SAMPLE:
            archive, part, kind = SAMPLE[name]
            folder = unpack(archive, tmp_path)
            return folder / "mlflow.db" if name == "mlflow.db" else folder / part, folder / part, kind
        if name == "tensorboard":
            folder = request.getfixturevalue("event_files")
            return folder, folder, name
        table = "".join(",".join(map(str, row)) + "\n" for row in ROWS)
        lines = "".join(json.dumps(dict(zip(ROWS[0], row, strict=True)) | {"loss": 0.5}) + "\n" for row in ROWS[1:])
        places = {"csv": ("a.csv", "b.csv"), "jsonl": ("a.jsonl", "b.jsonl")}
        for file in places.get(name, ("version_0/metrics.csv", "version_1/metrics.csv")):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(lines if name == "jsonl" else table)
            if name == "lightning":
                (folder / file).with_name("hparams.yaml").write_text("lr: 0.1\nnet:\n  width: 3\n")
        return folder, folder, "csv"

    return make


def read(path, kind):
    """Return the runs by place: points as `points_of` returns them, or None if it fails; and what was left out."""
    runs = {}
    for found in reader_for(path, kind).find(path):
        try:
            run = foreign._read(found)
        except ForeignError as error:
            runs[found.place] = None, [str(error)]
        else:
            curves = {each.name: (each.steps.tolist(), [*map(repr, each.values.tolist())]) for each in run.curves}
            runs[found.place] = curves, run.left_out
    return runs


def is_beginning(part, whole):
    """Tell whether all curves are beginnings of those of a whole run."""
    return part.keys() <= whole.keys() and all(
        steps == whole[name][0][: len(steps)] and values == whole[name][1][: len(values)]
        for name, (steps, values) in part.items()
    )


def check_cuts(path, file, kind, num_places=20):
    """Cut a file at some places and compare each time what is read with the whole."""
    data, whole, counts = file.read_bytes(), read(path, kind), []
    is_of_all = file.suffix in (".db", ".yaml", ".png")  # which several runs share
    for size in np.linspace(0, len(data) - 2, num_places).astype(int):
        file.write_bytes(data[:size])
        try:
            runs = read(path, kind)
        except ForeignError:
            if not is_of_all:
                raise
            continue
        # A process that still writes may have come so far.
        is_growing = data[:size].endswith((b"\n", b"\r")) or ("tfevents" in file.name and not num_torn(data[:size]))
        for place, (points, left_out) in whole.items():
            part, reasons = runs.get(place, (None, ["the source"]))
            if is_of_all or any(each in (str(file), *map(str, file.parents)) for each in place.split(", ")):
                assert is_beginning(part or {}, points or {}), (size, place)
                assert part == points or file.suffix not in POINTLESS, (size, place)
                assert part == points or reasons != left_out or is_growing or not size, (size, place, left_out)
            else:
                assert (part, reasons) == (points, left_out), (size, place)
        counts.append(sum(len(steps) for part, _ in runs.values() for steps, _ in (part or {}).values()))
    assert counts == sorted(counts) or file.suffix in ALL_OR_NONE
    file.write_bytes(data)
    assert read(path, kind) == whole


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FILES)
def test_source_cut_anywhere_keeps_what_is_whole_and_says_what_is_missing(name, source):
    path, folder, kind = source(name)
    [file] = folder.glob(FILES[name][0])
    check_cuts(path, file, kind)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "pattern"), [(name, each) for name, (_, others) in FILES.items() for each in others])
def test_further_file_cut_anywhere_takes_along_nothing_else(name, pattern, source):
    path, folder, kind = source(name)
    [file] = folder.glob(pattern)
    check_cuts(path, file, kind)


def num_points(runs):
    return sum(len(steps) for points, _ in runs.values() for steps, _ in (points or {}).values())


def check_flips(path, file, kind, num_places):
    """Flip a bit at some places: all points are read, or damage is reported; what checksums cover is right."""
    data, whole = file.read_bytes(), read(path, kind)
    is_checked = file.suffix in CHECKED or "tfevents" in file.name
    for number, place in enumerate(np.linspace(0, len(data) - 1, num_places).astype(int)):
        file.write_bytes(data[:place] + bytes([data[place] ^ 1 << number % 8]) + data[place + 1 :])
        try:
            runs = read(path, kind)
        except ForeignError:
            continue
        if all(name in whole and left_out == whole[name][1] for name, (_, left_out) in runs.items()):
            assert num_points(runs) >= num_points(whole), (place, data[place], number % 8)
            assert runs == whole or not is_checked, (place, data[place], number % 8)
    file.write_bytes(data)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("num_places", [4, pytest.param(40, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", FILES)
def test_flipped_bit_loses_no_point_without_a_word(name, num_places, source):
    path, folder, kind = source(name)
    for pattern in (FILES[name][0], *(FILES[name][1] if num_places > 10 else ())):
        [file] = folder.glob(pattern)
        check_flips(path, file, kind, num_places)


@pytest.mark.nightly
@pytest.mark.parametrize("name", FILES)
def test_source_cut_at_forty_places_says_what_is_missing(name, source):
    path, folder, kind = source(name)
    for pattern in (FILES[name][0], *FILES[name][1]):
        [file] = folder.glob(pattern)
        check_cuts(path, file, kind, 40)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", FILES)
def test_copy_of_a_source_adds_nothing(name, source, store, tmp_path):
    path, folder, kind = source(name)
    first = [run.outcome for run in import_foreign(path, store, kind)]
    contents = contents_of(store)
    copied = tmp_path / "elsewhere"
    shutil.copytree(folder, copied, copy_function=shutil.copy)  # with new times
    for place in (path, copied / path.relative_to(folder)):
        again = [run.outcome for run in import_foreign(place, store, kind)]
        assert (first.count("new"), first.count("failed")) == (again.count("present"), again.count("failed"))
        assert (contents_of(store), store.trash()) == (contents, [])


def killed_in(action, folder, number):
    """Do something in a process that kills itself before its so-and-so-many-th operation on files of a folder.

    Returns:
        The number of operations if it came to its end; None if it was killed.
    """
    counter = folder.with_name("operations")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the child does not use
        child = os.fork()
    if not child:
        status = 1
        try:
            signal.alarm(120)
            done = 0

            def count(event, arguments):
                nonlocal done
                if event in OPERATIONS and any(str(each).startswith(str(folder)) for each in arguments[:2]):
                    done += 1
                    if done == number:
                        os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(count)
            action()
            counter.write_text(str(done))
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return None
    assert status == 0
    return int(counter.read_text())


def contents_of(store):
    """Return everything that tells runs apart, by uid."""
    return {
        run.uid: (
            points_of(run), run.config, run.info, run.status, run.start_time, run.tags, [*run.artifacts],
            [(entry["name"], entry["step"]) for entry, _ in run.media_entries()],
        )
        for run in store
    }  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("num_kills", [3, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FILES)
def test_import_killed_at_any_operation_is_completed_by_the_next_one(name, num_kills, source, tmp_path):
    path, folder, kind = source(name)
    before = digest_of(folder)

    def take(where):
        with open_store(where, create=True) as store:
            outcomes = [run.outcome for run in import_foreign(path, store, kind)]
            return outcomes, contents_of(store), len(store), [run.uid for run in store.trash()]

    outcomes, contents, num_runs, _ = take(tmp_path / "whole")
    num_operations = killed_in(lambda: take(tmp_path / "counted"), tmp_path / "counted", 0)
    assert num_operations > 10 * num_runs
    for number in np.linspace(1, num_operations * 0.9, num_kills).astype(int):
        where = tmp_path / f"killed-{number}"
        assert killed_in(lambda where=where: take(where), where, number) is None
        again, *rest = take(where)
        assert again.count("failed") == outcomes.count("failed"), number
        assert rest == [contents, num_runs, []], number
    assert digest_of(folder) == before
