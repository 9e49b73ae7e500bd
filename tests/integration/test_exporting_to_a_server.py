"""Exports to a running MLflow server, killed midway: needs `mlflow`, the server's own command, on the PATH."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest

from sacristan.experiments import Experiment
from sacristan.observers import FileObserver
from sacristan.runs import export_to, open_store

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("flask") is None, reason="needs mlflow with its server, which mlflow-skinny lacks"),
]
NUM_POINTS = 3_000


class Server:
    """An MLflow server on a database in a folder."""

    def __init__(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder, self.url = folder, f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        words = ["mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        words += [
            "--backend-store-uri",
            f"sqlite:///{self.folder}/db",
            "--artifacts-destination",
            str(self.folder / "files"),
        ]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        while self.process.poll() is None:
            try:
                urllib.request.urlopen(f"{self.url}/health").close()
            except OSError:
                continue
            return
        raise RuntimeError((self.folder / "log").read_text())

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def runs(self):
        from mlflow import MlflowClient

        client = MlflowClient(self.url)
        ids = [experiment.experiment_id for experiment in client.search_experiments()]
        return client, list(client.search_runs(ids))


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "server"
    folder.mkdir()
    server = Server(folder)
    yield server
    server.kill()


def test_export_to_a_server_that_is_killed_midway_is_completed_by_the_next_one(server, tmp_path):
    ex = Experiment("served", base_dir=Path(__file__).parent, save_git_info=False)
    ex.observers.append(FileObserver(tmp_path / "runs"))
    (tmp_path / "a.txt").write_text("hello")

    @ex.main
    def run(_run):
        for step in range(NUM_POINTS):
            _run.log_scalar("loss", 1 / (step + 1), step)
        _run.add_artifact(tmp_path / "a.txt")

    ex.run()
    words = ["--store", str(tmp_path / "runs"), "export", "1", "--format", "mlflow", "-o", server.url]
    process = subprocess.Popen([sys.executable, "-m", "sacristan", *words], stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not any(run.data.metrics for run in server.runs()[1]):
        pass
    server.kill()
    error = process.communicate()[1]
    assert process.returncode == 1
    assert server.url in error.splitlines()[-1]
    server.start()
    with open_store(tmp_path / "runs") as store:
        outcomes = [next(export_to(store.find(), server.url, "mlflow")).outcome for _ in range(2)]
    assert outcomes == ["replaced", "present"]
    client, [only] = server.runs()
    points = client.get_metric_history(only.info.run_id, "loss")
    assert [(point.step, point.value) for point in points] == [(step, 1 / (step + 1)) for step in range(NUM_POINTS)]
    assert [file.path for file in client.list_artifacts(only.info.run_id)] == ["a.txt"]
