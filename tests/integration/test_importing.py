"""Runs of other trackers: every point, time and status arrives; importing again adds nothing; the source stays."""

from __future__ import annotations

import contextlib
import csv
import json
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from sacristan.__main__ import main
from sacristan.runs import ForeignError, LaunchError, copy, export_runs, import_foreign, open_store
from sacristan.runs.rerun import Record
from sacristan.runs.transfer.trackers import READERS, wandb_files
from tests.trackers import LOSSES, SAMPLES, digest_of, points_of, take, unpack

MOST = "1.7976931348623157e+308"
STATUSES = {"FINISHED": "COMPLETED", "FAILED": "FAILED", "RUNNING": "DEAD"}


@pytest.mark.parametrize(("part", "kind"), [("mlflow.db", "database"), ("files", "files")])
def test_runs_of_mlflow_are_what_its_own_client_reads(part, kind, store, tmp_path):
    path = unpack("mlflow", tmp_path) / part
    before = digest_of(path)
    outcomes = take(path, store, tags=["from-mlflow"])
    expected = json.loads((SAMPLES / "expected.json").read_text())[kind]
    assert [(run.outcome, run.left_out) for run in outcomes] == [("new", ())] * len(expected)
    found = {run.document["imported"]["key"]: run for run in store}
    assert found.keys() == expected.keys()
    for key, theirs in expected.items():
        run = found[key]
        assert (run.status, run["meta.comment"], run.name) == (STATUSES[theirs["status"]], theirs["name"], "digits")
        assert run.display_name == theirs["name"]
        assert run.start_time.timestamp() == theirs["start"] / 1000
        if theirs["end"]:
            assert run.stop_time.timestamp() == theirs["end"] / 1000
        points = points_of(run)
        nested = {name: points.pop(name) for name in list(points) if name.startswith("child/")}
        # A parent has what the runs in it logged as well, as a script's record has.
        assert nested == ({"child/train/loss": ([5], ["2.0"])} if theirs["name"] == "parent" else {})
        assert points == {
            # The client returns the greatest float for an infinity of a database.
            name: ([step for _, step, _ in points], [value.replace(MOST, "inf") for _, _, value in points])
            for name, points in theirs["metrics"].items()
        }
        for name, points in theirs["metrics"].items():
            times = run.metric(name).times + run.start_time.timestamp()
            assert times == pytest.approx([time_ms / 1000 for time_ms, _, _ in points], abs=0.011)
        assert run.tags == ["from-mlflow"]
    [parent] = [run for run in store if run["meta.comment"] == "parent"]
    assert dict(parent.config) == {"lr": 0.1, "optimizer": "adam", "nesterov": False, "decay": None}
    assert parent.note == "a note"
    assert parent["user"] == "user"
    assert parent.artifacts["files/notes/a.txt"].read() == b"hello"
    assert json.loads(parent.artifacts["files/config.json"].read()) == {"a": 1}
    assert digest_of(path) == before
    assert {run.outcome for run in take(path, store)} == {"present"}
    assert len(store) == len(expected)


def test_database_of_mlflow_that_a_killed_writer_left_unfinished_is_read_and_not_repaired(store, tmp_path):
    path = unpack("mlflow", tmp_path) / "mlflow.db"
    script = (
        "import os, sqlite3, sys\n"
        "d = sqlite3.connect(sys.argv[1])\n"
        "d.execute('PRAGMA journal_mode=WAL'); d.execute('PRAGMA wal_autocheckpoint=0')\n"
        "d.execute(\"UPDATE experiments SET name = 'renamed' WHERE name = 'digits'\"); d.commit()\n"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", script, path], check=False).returncode == -signal.SIGKILL
    before = digest_of(path)
    take(path, store)
    assert {run.name for run in store} == {"renamed"}
    assert digest_of(path) == before


def test_runs_of_wandb_have_every_logged_value(store, tmp_path):
    pytest.importorskip("wandb")
    path = unpack("wandb", tmp_path) / "wandb"
    before = digest_of(path)
    outcomes = take(path, store)
    assert [run.outcome for run in outcomes] == ["new", "new", "failed"]
    # The process was killed before anything but the header was written.
    assert outcomes[2].left_out == ("its .wandb file holds no whole record",)
    completed, failed = sorted(store, key=lambda run: run.status)
    assert (completed.status, failed.status) == ("COMPLETED", "FAILED")
    assert completed.config == {"lr": 0.1, "net": {"width": 3}}
    assert (completed.note, sorted(completed.tags), completed.name) == ("a note", ["baseline", "first-try"], "digits")
    points = {name: points for name, points in points_of(completed).items() if not name.startswith("system/")}
    assert points == {
        "train/loss": ([*range(40), 46], [*map(repr, LOSSES), "0.0"]),
        "val.accuracy": ([*range(40)], [repr(step / 40) for step in range(40)]),
        "odd": ([40, 41], ["nan", "inf"]),
        "epoch": ([42, 43, 44], ["0.0", "1.0", "2.0"]),
        "epoch/loss": ([0, 1, 2], ["0.0", "2.0", "4.0"]),
    }
    assert b"hello from the run" in completed.read_output()[0]
    assert completed["info.summary.best"] == 0.9
    media = {entry["name"]: entry for entry, _ in completed.media_entries()}
    assert {name: entry["kind"] for name, entry in media.items()} == {
        "image": "image", "counts": "histogram", "table": "table",
    }  # fmt: skip
    assert (media["image"]["meta"]["width"], media["image"]["step"]) == (6, 45)
    assert any("'word'" in sentence for sentence in outcomes[0].left_out)
    assert digest_of(path) == before


def test_run_of_wandb_keeps_its_user(store, tmp_path):
    messages = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    [source, _, _] = sorted((unpack("wandb", tmp_path) / "wandb").glob("*/*.wandb"))
    environment = messages.EnvironmentRecord(os="Linux", username="ada")
    record = messages.Record(environment=environment).SerializeToString()
    header = wandb_files._HEAD.pack(zlib.crc32(record, zlib.crc32(b"\1")), len(record), 1)  # in one piece
    source.write_bytes(source.read_bytes() + header + record)
    take(source, store)
    assert [run["user"] for run in store.find("user=ada")] == ["ada"]


def _wandb_run(folder, id, losses, **names):
    """Write a run of W&B with a few points."""
    messages = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    folder.mkdir(parents=True)
    with (folder / f"run-{id}.wandb").open("wb") as stream:
        log = wandb_files.LogWriter(stream)
        log.add(messages.Record(run=messages.RunRecord(run_id=id, **names)).SerializeToString())
        for step, loss in enumerate(losses):
            row = messages.HistoryRecord(step=messages.HistoryStep(num=step))
            row.item.add(nested_key=["loss"], value_json=json.dumps(loss))
            log.add(messages.Record(history=row).SerializeToString())
        log.add(messages.Record(output_raw=messages.OutputRawRecord(line=f"said by {id}\n")).SerializeToString())
        log.add(messages.Record(exit=messages.RunExitRecord()).SerializeToString())


def test_one_id_of_wandb_in_two_projects_is_two_runs_and_its_folders_in_one_project_are_one(store, tmp_path):
    for number, (losses, names) in enumerate(
        [
            ([1.0], {"entity": "ada", "project": "first"}),
            ([2.0], {"entity": "ada", "project": "second"}),
            ([3.0], {"entity": "bob", "project": "second"}),
            ([4.0, 5.0], {"project": "first"}),  # resumed offline, where W&B does not know the entity
        ]
    ):
        _wandb_run(tmp_path / "wandb" / f"offline-run-2026010{number + 1}_000000-abc", "abc", losses, **names)
    for outcome in ("new", "present"):
        assert [run.outcome for run in take(tmp_path / "wandb", store)] == [outcome] * 3
    assert sorted((run.name, points_of(run)["loss"][1]) for run in store) == [
        ("first", ["1.0", "4.0", "5.0"]), ("second", ["2.0"]), ("second", ["3.0"]),
    ]  # fmt: skip
    assert all(b"said by abc\n" in run.read_output()[0] for run in store)
    shutil.move(tmp_path / "wandb", tmp_path / "moved")
    shutil.rmtree(tmp_path / "moved" / "offline-run-20260104_000000-abc")  # an earlier state of it
    assert [run.outcome for run in take(tmp_path / "moved", store)] == ["present"] * 3
    assert len(store) == 3


def test_wandb_file_cut_anywhere_keeps_the_whole_records_before_and_is_completed_later(store, tmp_path):
    pytest.importorskip("wandb")
    [source, _, _] = sorted((unpack("wandb", tmp_path) / "wandb").glob("*/*.wandb"))
    data = source.read_bytes()
    large = data[:7] + b"".join(_framed(data))  # over several blocks
    whole = list(wandb_files.records(large, []))
    for size in [8, 13, 14, 32768, 32769, len(large) - 1, *np.linspace(20, len(large) - 2, 14).astype(int)]:
        damages = []
        found = list(wandb_files.records(large[:size], damages))
        assert found == whole[: len(found)]
        assert [end for _, end in damages] == [size]
    for place in np.linspace(7, len(large) - 1, 40).astype(int):
        damages = []
        flipped = large[:place] + bytes([large[place] ^ 8]) + large[place + 1 :]
        found = list(wandb_files.records(flipped, damages))
        [(start, end)] = damages
        assert start <= place < end <= start + 2 * 32768
        assert Counter(found) < Counter(whole)
    source.write_bytes(data[: len(data) // 2])
    [cut] = take(source, store)
    assert cut.outcome == "new"
    assert any("no whole record" in sentence for sentence in cut.left_out)
    store.tag(store.get(cut.id), ["mine"])
    assert store.get(cut.id).status == "DEAD"
    source.write_bytes(data)
    [done] = take(source, store)
    assert done.outcome == "completed"
    [run] = store
    assert (run.status, "mine" in run.tags, len(run.metric("train/loss"))) == ("COMPLETED", True, 41)


def _framed(data):
    """Yield the records of a file as they lie in blocks, three times over."""
    at = 7
    for record in list(wandb_files.records(data, [])) * 3:
        first = True
        while True:
            room = 32768 - at % 32768
            if room < 7:
                yield bytes(room)
                at += room
                continue
            piece, record = record[: room - 7], record[room - 7 :]
            kind = (1 if first else 4) if not record else (2 if first else 3)
            yield wandb_files._HEAD.pack(zlib.crc32(piece, zlib.crc32(bytes([kind]))), len(piece), kind) + piece
            at += 7 + len(piece)
            first = False
            if not record:
                break


@pytest.mark.slow
def test_event_files_are_read_whole_with_media_and_hyperparameters(tmp_path, store):
    import torch
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "tb" / "first")) as writer:
        for step in range(15_000):  # TensorBoard would keep 10,000
            writer.add_scalar("train/loss", step / 7, step)
        writer.add_scalar("odd", float("nan"), 1)
        writer.add_scalar("odd", float("-inf"), 2)
        writer.add_scalar("new", 0.5, 3, new_style=True)
        writer.add_scalars("both", {"a": 1.0}, 4)
        writer.add_image("image", np.zeros((3, 4, 6), np.uint8), 5)
        writer.add_histogram("counts", np.arange(100.0), 6)
        writer.add_text("words", "some *words*", 7)
        writer.add_audio("sound", torch.zeros(1, 100), 8)
        writer.add_pr_curve("pr", np.array([0, 1]), np.array([0.1, 0.9]), 0)
        writer.add_hparams({"lr": 0.1, "net": "mlp", "flag": True}, {"hp/accuracy": 0.5})
    [run] = take(tmp_path / "tb", store)
    assert run.left_out == ("'pr': data of the plugin pr_curves",)
    [run] = store
    assert dict(run.config) == {"lr": 0.1, "net": "mlp", "flag": True}
    assert (run.name, run["meta.comment"]) == ("tb", "first")
    loss = run.metric("train/loss")
    assert loss.steps.tolist() == [*range(15_000)]
    assert np.array_equal(loss.values, np.array([step / 7 for step in range(15_000)], np.float32).astype(float))
    rest = {name: points for name, points in points_of(run).items() if name != "train/loss"}
    assert rest == {
        "odd": ([1, 2], ["nan", "-inf"]),
        "new": ([3], ["0.5"]),
        "both_a/both": ([4], ["1.0"]),
        "hp/accuracy": ([0], ["0.5"]),
    }
    kinds = {entry["name"]: (entry["kind"], entry["step"]) for entry, _ in run.media_entries()}
    assert kinds == {
        "image": ("image", 5), "counts": ("histogram", 6), "words": ("text", 7), "sound": ("audio", 8),
    }  # fmt: skip
    assert {each.outcome for each in take(tmp_path / "tb", store)} == {"present"}


@pytest.mark.slow
def test_csv_logger_of_lightning_is_read_with_its_hyperparameters(tmp_path, store):
    pytest.importorskip("lightning")
    from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(tmp_path, "logs", flush_logs_every_n_steps=5)
    logger.log_hyperparams({"lr": 0.1})
    for step in range(20):
        logger.log_metrics({"train_loss": step / 3}, step)
        if step % 10 == 9:
            logger.log_metrics({"val_loss": float("nan"), "epoch": step // 10}, step)
    logger.finalize("success")
    [outcome] = take(tmp_path / "logs", store)
    assert (outcome.outcome, outcome.left_out) == ("new", ())
    [run] = store
    with (tmp_path / "logs" / "version_0" / "metrics.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    theirs = [(int(row["step"]), row["train_loss"]) for row in rows if row["train_loss"]]
    assert points_of(run)["train_loss"] == ([step for step, _ in theirs], [repr(float(value)) for _, value in theirs])
    assert points_of(run)["val_loss"] == ([9, 19], ["nan", "nan"])
    assert run.config == {"lr": 0.1}


@pytest.mark.parametrize(
    ("name", "text", "expected", "left_out"),
    [
        (
            "a.csv",
            "step,loss,note\n0,1.5,x\n10,,y\n20,inf,\n",
            {"loss": ([0, 20], ["1.5", "inf"])},
            "2 cells of 'note'",
        ),
        ("a.csv", "loss,iteration\n1,0.5\n2,1.5\n", {"loss": ([0.5, 1.5], ["1.0", "2.0"])}, None),
        ("a.csv", "loss\n1\n2\n", {"loss": ([0, 1], ["1.0", "2.0"])}, None),
        # Milliseconds are no times, and kept as what they are.
        ("a.csv", "time,loss\n17e11,1\n", {"loss": ([0], ["1.0"]), "time": ([0], ["1700000000000.0"])}, None),
        (
            "a.csv",
            "loss,acc\n1,2\n3\n4,5\n",
            {"loss": ([0, 1], ["1.0", "4.0"]), "acc": ([0, 1], ["2.0", "5.0"])},
            "line 3",
        ),
        ("a.csv", "step,loss\n0,1.5\n1,1.2", {"loss": ([0], ["1.5"])}, "line 3, the last one, has no end"),
        ("a.tsv", "step\tloss\n0\t1\n", {"loss": ([0], ["1.0"])}, None),
        # A row without a step has its number; words for numbers count in mixed columns, too.
        (
            "a.csv",
            "step,loss,odd\n5,1,true\n,2,nan\n9,3,-inf\n",
            {"loss": ([5, 1, 9], ["1.0", "2.0", "3.0"]), "odd": ([5, 1, 9], ["1.0", "nan", "-inf"])},
            None,
        ),
        ("a.jsonl", '{"step": 3, "a": {"b": 1}}\n{"st', {"a/b": ([3], ["1.0"])}, "line 2 is no JSON"),
        ("a.jsonl", '{"a": 1}\n[2]\n\n{"a": 3}\n', {"a": ([0, 2], ["1.0", "3.0"])}, "line 2 is no JSON object"),
    ],
)
def test_table_of_metrics_is_read_cell_by_cell(name, text, expected, left_out, tmp_path, store):
    (tmp_path / name).write_text(text)
    [outcome] = take(tmp_path / name, store)
    [run] = store
    assert points_of(run) == expected
    assert len(outcome.left_out) == (left_out is not None)
    assert left_out is None or left_out in outcome.left_out[0]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "it has no rows"),
        ("a.csv", b"a,a\n1,2\n", "its first line names a column twice: a, a"),
        ("a.csv", b"\xff\xfe\x00", "it is no text in UTF-8"),
        ("run-x.wandb", b"no", "begins with b'no', expected b':W&B'"),
        ("events.out.tfevents.1.host.1.0", b"garbage", "its event files hold no whole event"),
    ],
)
def test_one_damaged_run_fails_and_hides_no_others(name, content, message, tmp_path, store):
    if name.endswith("wandb"):
        pytest.importorskip("wandb")
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / name).write_bytes(content)
    [outcome] = take(tmp_path / "from", store)
    assert outcome.outcome == "failed"
    assert message in outcome.left_out[0]
    assert len(store) == 0


def test_table_of_a_number_that_no_float_holds_hides_no_others_and_keys_of_a_config_become_texts(tmp_path, store):
    folder = tmp_path / "from"
    folder.mkdir()
    (folder / "a.csv").write_text(f"loss\n{'9' * 400}\n")
    (folder / "b.csv").write_text("loss\n1\n")
    (folder / "config.yaml").write_text("lr: {0: 0.1, rest: 2}\n")
    failed, new = take(folder, store)
    assert failed.left_out == ("its content is invalid (OverflowError: int too large to convert to float)",)
    assert (failed.outcome, new.outcome) == ("failed", "new")
    [run] = store
    assert run.config == {"lr": {"0": 0.1, "rest": 2}}


def test_file_that_is_gone_before_it_is_read_fails_alone(tmp_path, store):
    (tmp_path / "from").mkdir()
    for name in "abc":
        (tmp_path / "from" / f"{name}.csv").write_text("loss\n1\n")
    runs = import_foreign(tmp_path / "from", store)
    first = next(runs)
    (tmp_path / "from" / "b.csv").unlink()
    gone, last = runs
    assert [run.outcome for run in (first, gone, last)] == ["new", "failed", "new"]
    assert gone.left_out == (f"{tmp_path}/from/b.csv: No such file or directory",)
    record = json.loads((tmp_path / "store" / "1" / "run.json").read_text())
    # Tools of Sacred look for these.
    assert record["resources"] == record["artifacts"] == record["experiment"]["sources"] == []


def test_run_of_a_time_that_no_calendar_has_fails(tmp_path, store):
    folder = tmp_path / "from" / "0" / "abc"
    (folder / "metrics").mkdir(parents=True)
    (folder / "meta.yaml").write_text("run_id: abc\nstatus: 3\n")
    (folder / "metrics" / "loss").write_text(f"{10**18} 0.5 0\n")
    [outcome] = take(tmp_path / "from", store)
    assert (outcome.outcome, outcome.left_out) == ("failed", ("got the time 1e+15, expected seconds since 1970",))
    (folder / "metrics" / "loss").write_text(f"{10**12} 0.5 0\n{10**18} 0.4 1\n")
    [outcome] = take(tmp_path / "from", store)
    assert outcome.left_out == ("times of 'loss' more than 497 days after the start",)
    assert store.get(outcome.id).metric("loss").times.tolist() == [0, 42_949_672.95]


def test_import_names_each_run_and_ends_with_1_if_one_failed(tmp_path, capsys):
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "good.csv").write_text("step,loss\n0,1\n1,2\n")
    (tmp_path / "from" / "bad.csv").write_text("")
    words = ["--store", str(tmp_path / "store"), "import", str(tmp_path / "from"), "--tag", "old"]
    assert main([*words, "--dry"]) == 1
    assert f"would import into {tmp_path}/store: 1 new, 1 failed; 2 points" in capsys.readouterr().out
    assert main(words) == 1
    out, err = capsys.readouterr()
    assert f"{tmp_path}/from/good.csv is run 1: 2 points" in out
    assert err.strip() == f"failed: {tmp_path}/from/bad.csv: it has no rows"
    assert main(words) == 1
    assert "1 present, 1 failed" in capsys.readouterr().out
    with open_store(tmp_path / "store") as store:
        assert [run.tags for run in store] == [["old"]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere: there is no such file or folder"),
        (
            [".", "--from", "mlfow"],
            f"got the kind 'mlfow', expected one of {', '.join(READERS)}; did you mean mlflow?",
        ),
        (["."], ". holds no runs of a known tracker"),
        ([".", "--from", "csv"], ". holds no runs of the kind csv"),
        ([".", "--tag", "a b"], "got the tag 'a b'"),
    ],
)
def test_import_that_makes_no_sense_is_rejected_in_one_sentence(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["--store", str(tmp_path / "new" / "store"), "import", *words]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("option", [["--dry"], ["--tag", "old"]])
def test_option_for_other_trackers_is_rejected_with_an_archive(option, tmp_path, store, capsys):
    (tmp_path / "a.csv").write_text("loss\n1\n")
    take(tmp_path / "a.csv", store)
    export_runs(list(store), tmp_path / "runs.zip")
    assert main(["--store", str(tmp_path / "other"), "import", str(tmp_path / "runs.zip"), *option]) == 1
    assert "runs.zip is an archive of runs, which takes no --dry and no --tag" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_imported_runs_are_copied_to_a_database_and_not_started_again(tmp_path, store, mongo_url, database):
    (tmp_path / "a.csv").write_text("step,loss\n0,1\n1,nan\n")
    take(tmp_path / "a.csv", store)
    [run] = store
    with open_store(f"{mongo_url}/{database.name}", create=True) as other:
        copied = copy(run, other).run
        assert points_of(copied) == points_of(run)
        assert {each.outcome for each in take(tmp_path / "a.csv", other)} == {"present"}
        with pytest.raises(LaunchError, match="was imported from csv"):
            _ = Record(copied).mainfile


def test_names_of_a_hostile_source_stay_inside_the_store(store, tmp_path):
    path = unpack("mlflow", tmp_path) / "files"
    [folder] = [each.parent for each in path.rglob("artifacts") if (each / "notes").is_dir()]
    (folder / "artifacts" / "link").symlink_to("/etc/passwd")
    (folder / "params" / "up").symlink_to("/etc/passwd")
    (folder / "metrics" / "bad").write_text("1 2 3 4 5\nx\n1 nan 9223372036854775808\n")
    outcomes = take(path, store)
    [run] = [run for run in store if run["meta.comment"] == "parent"]
    assert "files/link" not in run.artifacts
    assert "up" not in run.config
    assert any("metric 'bad': line 2 is no point" in sentence for each in outcomes for sentence in each.left_out)
    shutil.rmtree(path)


def test_kind_of_an_entry_point_must_be_known(tmp_path, store):
    with pytest.raises(ForeignError, match=f"expected one of {', '.join(READERS)}"):
        take(tmp_path, store, kind="other")


def test_import_killed_between_discarding_a_run_and_adding_its_successor_keeps_tags_and_note(tmp_path, store):
    source = tmp_path / "a.csv"
    source.write_text("step,loss\n0,1\n")
    [first] = take(source, store)
    run = store.write_note(store.tag(store.get(first.id), ["mine"]), "good")
    source.write_text("step,loss\n0,1\n1,2\n")
    store.discard([run])  # what the killed import did
    [second] = take(source, store)
    assert second.outcome == "completed"
    [run] = store
    assert (run.tags, run.note, len(run.metric("loss"))) == (["mine"], "good", 2)


NO_LINK = "a link, which is not followed; put a copy in its place"


@pytest.mark.parametrize("how", ["address", "link"])
def test_artifacts_of_mlflow_come_from_the_folder_of_the_run_alone(how, store, tmp_path):
    path = unpack("mlflow", tmp_path) / "files"
    secrets = tmp_path / "secrets" / "artifacts"
    secrets.mkdir(parents=True)
    (secrets / "key").write_text("secret")
    [folder] = [each.parent for each in path.rglob("artifacts") if (each / "notes").is_dir()]
    shutil.rmtree(folder / "artifacts")
    if how == "link":
        (folder / "artifacts").symlink_to(secrets)
    meta = folder / "meta.yaml"
    text = meta.read_text()
    address = re.search("artifact_uri: (.*)", text)[1]
    meta.write_text(text.replace(address, secrets.as_uri()))
    outcomes = {run.place: run.left_out for run in take(path, store)}
    [run] = [run for run in store if run["meta.comment"] == "parent"]
    assert list(run.artifacts) == []
    assert outcomes[str(folder)] == ((f"artifacts: {NO_LINK}",) if how == "link" else ())


def test_links_in_a_store_of_mlflow_that_lead_out_of_it_are_not_followed(store, tmp_path):
    path = unpack("mlflow", tmp_path) / "files"
    runs = [folder.parent for folder in path.glob("*/*/meta.yaml")]
    outside = tmp_path / "outside"
    shutil.move(runs[0], outside / runs[0].name)
    runs[0].symlink_to(outside / runs[0].name)
    [parent] = [run for run in runs if (run / "metrics" / "odd").exists()]
    shutil.move(parent / "metrics", outside / "metrics")
    (parent / "metrics").symlink_to(outside / "metrics")
    outcomes = {run.place: run for run in take(path, store)}
    assert str(runs[0]) not in outcomes
    assert (outcomes[str(parent)].num_points, outcomes[str(parent)].left_out) == (0, (f"metrics: {NO_LINK}",))


@pytest.mark.parametrize("kind", ["mlflow", pytest.param("wandb", marks=pytest.mark.slow)])
def test_link_to_another_file_of_the_run_is_that_file_and_others_are_reported(kind, store, tmp_path):
    if kind == "wandb":
        pytest.importorskip("wandb")
    path = unpack(kind, tmp_path) / {"mlflow": "files", "wandb": "wandb"}[kind]
    folders = path.rglob({"mlflow": "artifacts", "wandb": "files"}[kind])
    files = max(sorted(folders), key=lambda folder: len(list(folder.iterdir())))
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "key").write_text("secret")
    (files / "last.ckpt").write_text("weights")
    (files / "sub").mkdir()
    for name, target in {
        "best.ckpt": "last.ckpt",
        "sub/up.ckpt": "../last.ckpt",
        "gone": "nothing",
        "key": tmp_path / "outside" / "key",
        "more": tmp_path / "outside",
        "sub/again": "..",
    }.items():
        (files / name).symlink_to(target)
    [outcome] = [each for each in take(path, store) if Path(each.place) in files.parents]
    run = store.get(outcome.id)
    names = ("best.ckpt", "last.ckpt", "sub/up.ckpt")
    assert {run.artifacts[f"files/{name}"].read() for name in names} == {b"weights"}
    left = [f"file {name!r}: a link that leads to no file" for name in ("gone", "key", "more", "sub/again")]
    assert sorted(each.partition(" in its")[0] for each in outcome.left_out if "a link" in each) == left
    assert not [name for name in run.artifacts if name.endswith(("key", "gone"))]


def test_artifacts_of_mlflow_are_found_from_a_folder_below_the_store(store, tmp_path, monkeypatch):
    path = unpack("mlflow", tmp_path)
    (path / "below").mkdir()
    monkeypatch.chdir(path / "below")
    take(Path("../mlflow.db"), store)
    assert {name for run in store for name in run.artifacts} == {"files/config.json", "files/notes/a.txt"}


@pytest.mark.parametrize(
    ("address", "folder", "is_found"),
    [
        ("file:///gone/mlruns/7/KEY/artifacts", "mlruns/7/KEY/artifacts", True),
        ("/gone/7/KEY/artifacts", "7/KEY/artifacts", True),
        ("file:///gone/two%20words/KEY/artifacts", "two words/KEY/artifacts", True),
        ("mlflow-artifacts:/7/KEY/artifacts", "mlartifacts/7/KEY/artifacts", True),
        ("s3://bucket/7/KEY/artifacts", "7/KEY/artifacts", False),
        ("BASE/KEY/../secrets/artifacts", "secrets/artifacts", False),
        ("BASE/secrets/KEY", "secrets/KEY", False),
    ],
)
def test_artifacts_of_mlflow_are_found_after_a_move_and_nothing_else_is(address, folder, is_found, store, tmp_path):
    path = unpack("mlflow", tmp_path)
    shutil.rmtree(path / "mlruns")
    with contextlib.closing(sqlite3.connect(path / "mlflow.db")) as database:
        [(key,)] = database.execute("SELECT run_uuid FROM runs WHERE name = 'parent'")
        address = address.replace("KEY", key).replace("BASE", str(path))
        database.execute("UPDATE runs SET artifact_uri = ? WHERE run_uuid = ?", (address, key))
        database.commit()
    (path / key).mkdir()
    folder = path / folder.replace("KEY", key)
    folder.mkdir(parents=True)
    (folder / "weights").write_text("weights")
    outcomes = {run.id: run.left_out for run in take(path / "mlflow.db", store)}
    [run] = [run for run in store if run["meta.comment"] == "parent"]
    assert list(run.artifacts) == (["files/weights"] if is_found else [])
    assert outcomes[run.id] == ((f"artifacts are at {address}, and stay there",) if address[:2] == "s3" else ())


def test_damaged_meta_files_of_mlflow_are_reported(store, tmp_path):
    path = unpack("mlflow", tmp_path) / "files"
    [folder] = [each.parents[1] for each in path.glob("*/*/metrics/odd")]
    shutil.move(folder.parent / "meta.yaml", tmp_path / "meta.yaml")
    (folder.parent / "meta.yaml").symlink_to(tmp_path / "meta.yaml")
    meta = folder / "meta.yaml"
    meta.write_text(re.sub("^status:.*\n", "", meta.read_text(), flags=re.M))
    outcomes = {run.place: run for run in take(path, store)}
    assert outcomes[str(folder)].left_out == (
        f"{folder.parent.name}/meta.yaml: a link that leads out of its folder",
        "meta.yaml: it is cut off, and does not say how the run ended",
    )
    run = store.get(outcomes[str(folder)].id)
    assert (run.name, run.status, run.config["lr"]) == ("mlflow", "UNKNOWN", 0.1)


@pytest.mark.parametrize("table", ["metrics", "runs"])
def test_database_of_mlflow_with_a_damaged_page_gives_what_it_has(table, store, tmp_path):
    path = unpack("mlflow", tmp_path) / "mlflow.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        [(size,)] = database.execute("PRAGMA page_size")
        [(root,)] = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,))
    with path.open("r+b") as stream:
        stream.seek((root - 1) * size)
        stream.write(b"\xff" * size)
    if table == "runs":
        with pytest.raises(ForeignError, match=r"mlflow\.db: it cannot be read \(database disk image is malformed\)"):
            take(path, store)
        return
    outcomes = {run.id: run for run in take(path, store)}
    assert {run.outcome for run in outcomes.values()} == {"new"}
    [parent] = [run for run in store if run["meta.comment"] == "parent"]
    damage, metrics = outcomes[parent.id].left_out
    assert damage.startswith("mlflow.db is damaged (")
    assert metrics == "metrics after row 0 (database disk image is malformed)"
    assert (parent.config["lr"], list(parent.artifacts)) == (0.1, ["files/config.json", "files/notes/a.txt"])


def test_dry_import_creates_no_store(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("step,loss\n0,1\n")
    assert main(["--store", str(tmp_path / "none"), "import", str(tmp_path / "a.csv"), "--dry"]) == 0
    assert f"would import into {tmp_path}/none: 1 new; 1 point" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()
