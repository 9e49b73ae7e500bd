"""Promises of the readers of all trackers: the values of the tracker's own reader, and no harm from a source.

`tests/data/trackers` holds a sample of each tracker, made by its own package, and the values that its reader returns.
"""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import sqlite3

import numpy as np
import pytest

from sacristan.observers.media.arrays import png_bytes
from sacristan.runs import ForeignError, import_foreign
from sacristan.runs.transfer.trackers.foreign_run import histogram_content
from tests.trackers import SAMPLES, digest_of, points_of, unpack

# The part of each sample to import, and its number of runs.
KINDS = {
    "mlflow": ("files", 4), "wandb": ("wandb", 2), "trackio": ("trackio", 2), "neptune": ("exports", 2),
    "dvclive": ("repo", 1), "hydra": ("hydra", 4),
}  # fmt: skip
HYDRA = ("config", "hydra", "overrides")
PACKAGES = {"wandb": "wandb", "neptune": "pyarrow", "hydra": "tensorboard"}


@pytest.fixture
def unpacked(tmp_path):
    """Return a function that unpacks the sample of a kind."""

    def of(kind):
        if kind in PACKAGES:
            pytest.importorskip(PACKAGES[kind])
        return unpack(kind, tmp_path) / KINDS[kind][0]

    return of


def expected_of(kind):
    return json.loads((SAMPLES / f"{kind}.json").read_text())


def check_points(run, expected):
    """Compare all points of a run with [step, repr of the value, seconds since 1970 or None]."""
    assert points_of(run) == {
        name: ([step for step, *_ in points], [value for _, value, *_ in points]) for name, points in expected.items()
    }
    for name, points in expected.items():
        times = [point[2] for point in points if len(point) > 2]
        if None not in times and times:
            assert run.metric(name).times + run.start_time.timestamp() == pytest.approx(times, abs=0.011)


@pytest.mark.parametrize("kind", ["trackio", "neptune"])
def test_runs_with_ids_are_what_the_own_reader_tells(kind, unpacked, store):
    path = unpacked(kind)
    outcomes = list(import_foreign(path, store, tags=["old"]))
    assert {run.outcome for run in outcomes} == {"new"}
    expected = expected_of(kind)
    assert {run.document["imported"]["key"] for run in store} == set(expected)
    for run in store:
        theirs = expected[run.document["imported"]["key"]]
        assert (run.name, run["meta.comment"]) == ("digits", theirs["name"])
        assert run.start_time.timestamp() == pytest.approx(theirs["start"], abs=0.001)
        assert run.config == theirs.get("config", run.config)
        check_points(run, theirs["metrics"])


def test_run_of_trackio_has_its_media_artifacts_and_alerts(unpacked, store):
    outcomes = list(import_foreign(unpacked("trackio"), store))
    assert {run.left_out for run in outcomes} == {("3 values of 'word' are no numbers",)}
    [run] = [run for run in store if run["meta.comment"] == "first"]
    media = {entry["name"]: (entry["kind"], entry["step"]) for entry, _ in run.media_entries()}
    assert media == {
        "image": ("image", 51), "counts": ("histogram", 51), "table": ("table", 51), "notes": ("text", 51),
    }  # fmt: skip
    [image] = [entry for entry, _ in run.media_entries() if entry["name"] == "image"]
    assert image["meta"] == {"width": 6, "height": 4, "caption": "black"}
    assert run.artifacts["files/model/v0/model.txt"].read() == b"weights"
    assert (run.status, run["info.trackio.group"]) == ("UNKNOWN", "seeds")
    assert [alert["title"] for alert in run.info["alerts"]] == ["high loss"]


def test_database_of_trackio_from_before_ids_is_read_by_names(unpacked, store):
    path = unpacked("trackio")
    with sqlite3.connect(path / "old.db") as database:
        database.execute(
            "CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp TEXT, run_name TEXT, step INTEGER, metrics TEXT)"
        )
        database.execute("INSERT INTO metrics VALUES (1, '2025-08-01T10:00:00', 'one', 3, '{\"loss\": \"NaN\"}')")
    database.close()
    [outcome] = import_foreign(path / "old.db", store)
    run = store.get(outcome.id)
    assert (run.name, run["meta.comment"], points_of(run)) == ("old", "one", {"loss": ([3], ["nan"])})
    assert run.start_time.isoformat() == "2025-08-01T10:00:00+00:00"


def test_run_of_neptune_has_status_tags_parameters_series_and_files(unpacked, store):
    outcomes = list(import_foreign(unpacked("neptune"), store))
    assert all(len(run.left_out) == 1 and "file 'lost': expected in" in run.left_out[0] for run in outcomes)
    first, second = sorted(store, key=lambda run: run["meta.comment"])
    assert (first.status, second.status) == ("UNKNOWN", "FAILED")
    assert first.config == {"parameters": {"lr": 0.1, "net": {"width": 3}, "nesterov": False}, "optimizer": "adam"}
    assert (first.note, sorted(first.tags), first["user"]) == ("a note", ["baseline", "first-try"], "user")
    assert (first.duration_s, first["info.neptune.source_code.diff"]) == (60, "none")
    assert first.read_output()[0] == b"hello from the run"
    media = {entry["name"]: (entry["kind"], entry["step"]) for entry, _ in first.media_entries()}
    assert media == {"notes": ("text", 1), "counts": ("histogram", 2), "samples": ("image", 0)}
    assert first.artifacts["files/model.txt"].read() == b"weights"


def test_folder_of_dvclive_is_what_its_own_reader_tells(unpacked, store):
    [outcome] = import_foreign(unpacked("dvclive"), store)
    assert outcome.left_out == ("metric 'word': 1 values are no numbers",)
    [run] = store
    check_points(run, expected_of("dvclive")["metrics"])
    assert (run.name, run["meta.comment"], run.status) == ("repo", "dvclive", "UNKNOWN")
    assert run.config == {"lr": 0.1, "net": {"width": 3}}
    assert run.info["summary"] == {"step": 39, "best": 0.9, "word": "text"}
    media = sorted((entry["name"], entry["step"]) for entry, _ in run.media_entries())
    assert media == [("last.png", 39), ("samples", 0), ("samples", 20)]
    assert json.loads(run.artifacts["files/plots/custom/points.json"].read()) == [{"x": 1, "y": 2}]


def test_outputs_of_hydra_have_its_config_and_the_points_beside_once(unpacked, store):
    path = unpacked("hydra")
    assert {run.left_out for run in import_foreign(path, store)} == {()}
    expected = expected_of("hydra")
    assert {run["meta.comment"] for run in store} == set(expected)
    for run in store:
        theirs = expected[run["meta.comment"]]
        assert (run.config, run.info["hydra"]["overrides"]) == (theirs["config"], theirs["overrides"])
        assert (run.name, run.status) == ("train", "UNKNOWN")
        assert b"hello from the run" in run.read_output()[0]
        check_points(run, theirs["metrics"])
        assert set(run.artifacts) == {f"files/.hydra/{name}.yaml" for name in HYDRA}


def test_metric_that_two_files_of_a_hydra_run_hold_is_imported_once_and_another_of_its_name_too(unpacked, store):
    path = unpacked("hydra") / "outputs" / "2026-01-01" / "12-00-00"
    [first] = import_foreign(path, store)
    points = points_of(store.get(first.id))
    losses = "".join(f"{step},{value}\n" for step, value in zip(*points["train/loss"], strict=True))
    (path / "again.csv").write_text(f"step,train/loss\n{losses}")
    (path / "other.csv").write_text("step,train/loss,more\n0,7,1\n")
    [outcome] = import_foreign(path, store)
    assert (outcome.outcome, outcome.left_out) == ("completed", ())
    [run] = store
    others = {"other.csv/train/loss": ([0], ["7.0"]), "more": ([0], ["1.0"])}
    assert points_of(run) == {**points, **others}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_training_of_lightning_in_an_output_folder_of_hydra_is_one_run(unpacked, store):
    lightning = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.demos.boring_classes import BoringModel
    from lightning.pytorch.loggers import CSVLogger

    class Net(BoringModel):
        def __init__(self, lr, net):
            super().__init__()
            self.save_hyperparameters()

        def training_step(self, batch, index):
            loss = super().training_step(batch, index)
            self.log("train/loss", loss["loss"])
            return loss

        def validation_step(self, batch, index):
            self.log("val/loss", super().validation_step(batch, index)["x"])

    path = unpacked("hydra") / "outputs" / "2026-01-01" / "12-30-00"
    options = {
        "accelerator": "cpu",
        "log_every_n_steps": 2,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "limit_train_batches": 8,
    }
    for epochs in (3, 1):
        trainer = lightning.Trainer(max_epochs=epochs, logger=CSVLogger(path), default_root_dir=path, **options)
        trainer.fit(Net(0.5, {"width": 3}))
        outcomes = list(import_foreign(path.parents[2], store))
    [mine] = [outcome for outcome in outcomes if outcome.outcome == "completed"]
    assert (len(outcomes), len(store), mine.place) == (4, 4, str(path))
    assert mine.left_out == ()
    run = store.get(mine.id)
    again = "lightning_logs/version_1/metrics.csv/"
    assert [name for name in run.metrics if name.startswith(again)] == [
        f"{again}{name}" for name in ("epoch", "train/loss", "val/loss")
    ]
    with (path / "lightning_logs" / "version_0" / "metrics.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    theirs = {
        name: [(float(row["step"]), repr(float(row[name]))) for row in rows if row[name]]
        for name in ("epoch", "train/loss", "val/loss")
    }
    ours = {name: points for name, points in points_of(run).items() if not name.startswith(again)}
    assert {name: list(zip(*points, strict=True)) for name, points in ours.items()} == theirs
    assert list(map(len, theirs.values())) == [15, 12, 3]
    assert run.config == expected_of("hydra")[run["meta.comment"]]["config"]
    assert run.info["hparams"] == {
        f"lightning_logs/version_{number}/metrics.csv": {"lr": 0.5, "net": {"width": 3}} for number in (0, 1)
    }
    assert (run.name, set(run.artifacts)) == ("train", {f"files/.hydra/{name}.yaml" for name in HYDRA})
    assert b"hello from the run" in run.read_output()[0]


def test_runs_below_a_run_of_hydra_are_not_part_of_it(unpacked, store):
    path = unpacked("hydra")
    shutil.copytree(path / "outputs" / "2026-01-01" / "12-30-00" / ".hydra", path / ".hydra")
    (path / "top.csv").write_text("loss\n1\n")
    assert len(list(import_foreign(path, store))) == 5
    [run] = [run for run in store if run["meta.comment"] == "hydra"]
    assert points_of(run) == {"loss": ([0], ["1.0"])}


@pytest.mark.parametrize("kind", KINDS)
def test_source_is_left_as_it_is_and_importing_again_adds_nothing(kind, unpacked, store):
    path = unpacked(kind)
    before = digest_of(path)
    first = [run.outcome for run in import_foreign(path, store)]
    again = [run.outcome for run in import_foreign(path, store)]
    assert (first.count("new"), again.count("present"), len(store)) == (KINDS[kind][1],) * 3
    assert digest_of(path) == before


def _lead_trackio_out(path, secret):
    [image] = path.glob("media/digits/second/51/*.png")
    image.unlink()
    image.symlink_to(secret)
    with sqlite3.connect(path / "digits.db") as database:
        for number, name in enumerate(("../secret.png", str(secret), "../" * 20 + str(secret), "\0")):
            value = json.dumps({f"bad{number}": {"_type": "trackio.image", "file_path": name}})
            database.execute(
                "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) "
                "SELECT run_id, timestamp, run_name, 1, ? FROM metrics LIMIT 1",
                (value,),
            )
        manifest = json.dumps([{"path": "../../../../../escaped", "digest": f"../../../../../{secret.name}"}])
        database.execute("UPDATE artifact_versions SET manifest = ?", (manifest,))
    database.close()


def _lead_dvclive_out(path, secret):
    folder = path / "dvclive"
    (folder / "plots" / "images" / "link.png").symlink_to(secret)
    (folder / "plots" / "metrics" / "link.tsv").symlink_to(secret.with_suffix(".csv"))
    (folder / "artifacts").symlink_to(secret.parent)
    (folder / "params.yaml").write_text(f"a: !!python/object/apply:os.system ['touch {secret.parent}/executed']\n")
    os.mkfifo(folder / "plots" / "images" / "fifo.png")


def _lead_hydra_out(path, secret):
    folder = path / "outputs" / "2026-01-01" / "12-00-00"
    (folder / ".hydra" / "overrides.yaml").unlink()
    (folder / ".hydra" / "overrides.yaml").symlink_to(secret)
    (folder / "link.tsv").symlink_to(secret.with_suffix(".csv"))
    hydra = folder / ".hydra" / "hydra.yaml"
    hydra.write_text(hydra.read_text().replace("    name: train\n", f"    name: ../../../../{secret.stem}\n"))
    (folder / ".hydra" / "config.yaml").write_text(
        f"a: !!python/object/apply:os.system ['touch {secret.parent}/executed']\n"
    )
    config = path / "outputs" / "2026-01-01" / "12-30-00" / ".hydra" / "config.yaml"
    lines = [f"a{place}: &a{place} [{', '.join([f'*a{place - 1}'] * 10)}]" for place in range(1, 9)]
    config.write_text("a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n" + "\n".join(lines))


def _lead_neptune_out(path, secret):
    import pyarrow as pa
    import pyarrow.parquet as parquet

    file = next(path.glob("**/RUN-1*_part_2.parquet"))
    table = parquet.read_table(file)
    rows = table.to_pylist()
    [template] = [row for row in rows if row["attribute_path"] == "model"]
    names = ("../../../../secret.png", str(secret), "RUN-1/link.png", "..", "")
    rows += [
        template | {"attribute_path": f"{'../' * (number == 4)}bad{number}", "file_value": {"path": name}}
        for number, name in enumerate(names)
    ]
    parquet.write_table(pa.Table.from_pylist(rows, table.schema), file)
    (next(path.glob("files/*/RUN-1")) / "link.png").symlink_to(secret)


@pytest.mark.parametrize(
    ("kind", "lead_out"),
    [
        ("trackio", _lead_trackio_out), ("dvclive", _lead_dvclive_out), ("hydra", _lead_hydra_out),
        ("neptune", _lead_neptune_out),
    ],
)  # fmt: skip
def test_names_links_and_code_of_a_hostile_source_do_no_harm(kind, lead_out, unpacked, store, tmp_path):
    path = unpacked(kind)
    secret = tmp_path / "secret.png"
    secret.write_bytes(png_bytes(np.zeros((4, 6, 3), np.uint8)) + b"1234567")
    secret.with_suffix(".csv").write_bytes(b"step\tloss\n0\t1234567\n")
    lead_out(path, secret)
    before = sorted(tmp_path.iterdir())
    outcomes = list(import_foreign(path, store))
    assert any(run.outcome == "new" for run in outcomes)
    assert any(run.left_out for run in outcomes)
    copies = [file for file in (tmp_path / "store").rglob("*") if file.is_file() and b"1234567" in file.read_bytes()]
    assert copies == []
    assert not any(1234567 in run.metric(name).values for run in store for name in run.metrics)
    assert sorted(tmp_path.iterdir()) == before


def test_part_of_an_export_of_neptune_that_is_missing_is_told(unpacked, store):
    path = unpacked("neptune")
    next(path.glob("**/RUN-1*_part_0.parquet")).unlink()
    first, _ = import_foreign(path, store)
    assert first.left_out[0] == "part 0 is missing: the export of the run was interrupted"
    assert first.num_points == 86


def test_damaged_database_of_trackio_hides_no_others(unpacked, store):
    path = unpacked("trackio")
    (path / "bad.db").write_bytes(b"SQLite format 3\0" + bytes(84))
    failed, *others = import_foreign(path, store)
    assert (failed.outcome, {run.outcome for run in others}) == ("failed", {"new"})
    assert "bad.db: it cannot be read" in failed.left_out[0]


def test_file_that_is_no_database_has_no_runs_of_trackio(tmp_path, store):
    (tmp_path / "a.db").write_bytes(b"text")
    with pytest.raises(ForeignError, match=r"a\.db holds no runs of the kind trackio"):
        list(import_foreign(tmp_path / "a.db", store, "trackio"))


@pytest.mark.parametrize(
    ("counts", "edges", "message"),
    [
        ([1, math.nan], [0, 1, 2], "not finite"),
        ([1, 2], [0, 1, math.inf], "not finite"),
        ([1, 2], [0, 1], r"got arrays of shapes \(2,\) and \(2,\)"),
    ],
)
def test_histogram_that_no_axis_has_is_refused(counts, edges, message):
    with pytest.raises(ValueError, match=message):
        histogram_content(counts, edges)
