"""Runs at W&B: all pages of all runs arrive; failing runs, rate limits and servers that die lose nothing."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sacristan.__main__ import main
from sacristan.runs import open_store
from tests.integration import wandb_server
from tests.trackers import points_of

KEY = "0123456789" * 4
STATUSES = {"one": "COMPLETED", "two": "FAILED", "three": "DEAD", "four": "INTERRUPTED", "five": "UNKNOWN"}


@pytest.fixture(autouse=True)
def _has_wandb():
    pytest.importorskip("wandb")


@contextlib.contextmanager
def serving(port=0, **behaviour):
    """Run a server; yield its port."""
    words = [sys.executable, wandb_server.__file__, str(port), json.dumps(behaviour)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def take(port, folder):
    environment = {
        **os.environ, "WANDB_BASE_URL": f"http://127.0.0.1:{port}", "WANDB_API_KEY": KEY,
        "WANDB_CACHE_DIR": str(folder / "cache"), "NETRC": str(folder / "netrc"), "WANDB_DIR": str(folder),
    }  # fmt: skip
    words = [sys.executable, "-m", "sacristan", "--store", str(folder / "store"), "import", "team/digits"]
    out, err = folder / "out", folder / "err"  # W&B's own process outlives the command, and holds pipes open
    with out.open("w") as stdout, err.open("w") as stderr:
        done = subprocess.run(
            [*words, "--from", "wandb-hosted"], env=environment, stdout=stdout, stderr=stderr, check=False
        )
    return done.returncode, out.read_text(), err.read_text()


def expected_points(name):
    rows = wandb_server.history(name)
    return {
        "train/loss": ([row["_step"] for row in rows], [repr(float(row["train/loss"])) for row in rows]),
        "odd": ([0, 1, 2], ["nan", "inf", "-inf"]),
        "val.accuracy": ([0], ["0.5"]),
    }


@pytest.mark.slow
def test_runs_at_wandb_arrive_whole_through_failures_and_a_server_that_dies(tmp_path):
    with serving(limits=1, fails=["two"], dies="four") as port:
        code, out, err = take(port, tmp_path)
    place = f"http://127.0.0.1:{port}/team/digits"
    assert (code, KEY in out + err) == (1, False), err
    assert f"{place}/one is run 1: 1504 points" in out
    assert f"failed: {place}/two: W&B did not send it" in err
    assert f"{place}/three is run 2" in out
    assert f"failed: {place}/four" in err
    assert f"{place} did not answer" in err
    assert "import again to continue" in err
    with serving(port) as port:
        code, out, err = take(port, tmp_path)
    assert (code, KEY in out + err) == (0, False), err
    assert "3 new, 2 present" in out
    with open_store(tmp_path / "store") as store:
        runs = {run["info.wandb.id"]: run for run in store}
        assert {name: run.status for name, run in runs.items()} == STATUSES
        for name, run in runs.items():
            assert points_of(run) == expected_points(name)
            assert run.start_time.timestamp() == 1.7e9
            assert run.metric("odd").times.tolist() == [0, 1, 2]
            assert run.config == {"lr": 0.1, "net": {"width": 3}}
            assert (run.name, run["meta.comment"], run.note, run.tags) == (
                "digits", f"run {name}", "a note", ["first-try"],
            )  # fmt: skip
            assert (run["info.summary"], run["user"]) == ({"best": 0.9}, "ada")
    for file in (file for file in tmp_path.rglob("*") if file.is_file()):
        assert KEY.encode() not in file.read_bytes(), file
    assert "values of 'word' (are no numbers)" in err
    assert "values of 'image' (image-file)" in err
    assert "files and system metrics, which stay at W&B" in err


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("team/digits", "there is no key for http://127.0.0.1:1; set WANDB_API_KEY, or run `wandb login`"),
        ("digits", "got 'digits', expected ENTITY/PROJECT"),
    ],
)
def test_project_without_key_or_entity_is_rejected_in_one_sentence(path, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("NETRC", str(Path(tmp_path, "none")))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert main(["--store", str(tmp_path / "store"), "import", path, "--from", "wandb-hosted"]) == 1
    assert message in capsys.readouterr().err
