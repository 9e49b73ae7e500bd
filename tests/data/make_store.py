"""Make the test data of a release: a folder of runs, an archive and a database that the lab of that release wrote.

    python tests/data/make_store.py LAB OUTPUT.tar.xz

LAB is a checkout of the release, such as `git worktree add ../release v0.2.0` makes. Its code runs as it is, in the
environment of this script, as a copy in `/tmp/stored/lab` on a host named `lab`: the records name no real machine.
It needs Linux, root (for the name of the host) and the extras `mongod` and `sweeps`.

The output unpacks to `my_runs/`, `run_1.zip` (an archive of run 1), `database/` (a BSON file for each collection) and
`made_by.json`. The runs are the same in the folder and in the database:

    1 COMPLETED    a training, with a tag and a note
    2 RUNNING      the same training, killed after its first state: now DEAD
    3 INTERRUPTED  the same training, ended by SIGTERM
    4 COMPLETED    predictions of run 1: an artifact
    5 COMPLETED    own.py: values that are no numbers, media, a resource, a versioned artifact
    6 FAILED       own.py
    7 QUEUED       a training
    8, 9 COMPLETED trials of the sweeps `lr` and, in the folder alone, `lr_folder`, which have another point to try;
                   only if the release has sweeps
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import bson
import pymongo

from sacristan.runs.work.mongod import Mongod

LAB = Path("/tmp/stored/lab")
HOST = "lab"
ROOT = Path(__file__).parents[2]
UNKNOWN_BOOT = b"00000000-0000-4000-8000-000000000000"
SMALL = ("epochs=10", "data.limit=300", "data.batch_size=16", "model.options.hidden=[4]", "training.log_interval=10")
OWN = """
from pathlib import Path

import numpy as np

from sacristan.experiments import Experiment
from sacristan.observers import Histogram, Image, Table, Text, file_observer

ex = Experiment("own")
ex.observers.append(file_observer("my_runs"))


@ex.config
def config():
    # whether it fails
    fails = False


@ex.automain
def main(_run, fails):
    for step, value in enumerate((0.5, float("nan"), float("inf"), -0.25)):
        _run.log_scalar("own/value", value, step)
        _run.log_scalar("own/half steps", value, step + 0.5)
    image = Image(np.arange(64, dtype=np.uint8).reshape(8, 8), caption="a ramp")
    _run.log_media("ramp", image, 1)
    _run.log_media("weights", Histogram(np.arange(10.0), bins=4), 1)
    _run.log_media("words", Text("as *Markdown*"), 1)
    _run.log_media("cases", Table(["image", "label", "p"], [[image, "cat", 0.9], [None, "dog", float("nan")]]), 1)
    Path("table.csv").write_text("a,b\\n1,2\\n")
    _run.open_resource("table.csv").close()
    _run.add_artifact("table.csv", name="results/table.csv")
    _run.log_artifact("table", "table.csv")
    _run.info["nested"] = {"text": "here", "numbers": [1, 2.5, None]}
    if fails:
        raise ValueError("it was told to fail")
    return {"accuracy": 0.5}
"""


def main(source: str, output: str) -> None:
    """Make the data.

    Args:
        source: The checkout.
        output: The file to write.
    """
    if socket.gethostname() != HOST:
        real = json.dumps([socket.gethostname(), f"/{getpass.getuser()}/", sys.prefix, str(ROOT)])
        command = ["unshare", "--uts", "sh", "-c", f'hostname {HOST} && exec "$@"', "sh", sys.executable, *sys.argv]
        sys.exit(subprocess.run(command, env={**os.environ, "REAL_NAMES": real}).returncode)
    target = Path(output).resolve()
    shutil.copytree(source, LAB, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "my_runs"))
    (LAB / "own.py").write_text(OWN)
    with Mongod(LAB.with_name("mongod")) as server:
        record(Path(source), f"{server.url}/lab")
        dump(server.url)
    made = {"commit": _git(source, "rev-parse", "HEAD"), "date": _git(source, "log", "-1", "--format=%as")}
    (LAB / "made_by.json").write_text(json.dumps(made))
    anonymize()
    store_uncompressed(LAB / "run_1.zip")
    with tarfile.open(target, "w:xz", preset=9) as archive:
        for name in ("made_by.json", "my_runs", "database", "run_1.zip"):
            archive.add(LAB / name, name, filter=_anonymous)
    shutil.rmtree(LAB.parent)


def record(source: Path, url: str) -> None:
    """Record the runs.

    Args:
        source: The checkout.
        url: The database.
    """
    python = _environment()

    def start(*words: str, code: int | None = 0) -> subprocess.Popen:
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(LAB), "USER": HOST, "LOGNAME": HOST, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen([python, *words], cwd=LAB, env=environment | {"SACRISTAN_CACHE": ""})
        if code is not None and process.wait() != code:
            raise RuntimeError(f"{words} ended with {process.returncode}, expected {code}")
        return process

    def cut_off(number: int, how: signal.Signals) -> None:
        process = start("exp.py", "-m", url, "with", *SMALL, "seed=1", code=None)
        while not list((LAB / f"my_runs/{number}/checkpoints").glob("step-*.pt")):
            if process.poll() is not None:
                raise RuntimeError(f"run {number} ended before it was cut off")
            time.sleep(0.001)
        process.send_signal(how)
        process.wait()

    start("exp.py", "-m", url, "with", *SMALL, "seed=1")
    cut_off(2, signal.SIGKILL)
    cut_off(3, signal.SIGTERM)
    trained = ("my_runs/1/config.json", "checkpoint.path=my_runs/1/checkpoints/best.pt")
    start("exp.py", "predict", "-m", url, "with", *trained)
    start("own.py", "-m", url)
    start("own.py", "-m", url, "with", "fails=True", code=1)
    start("exp.py", "-q", "-m", url, "with", *SMALL, "epochs=2")
    if (source / "ingredients" / "sweep.py").exists():
        sweep = (*SMALL, "epochs=2", "sweep.over={lr: [1e-2, 3e-2]}", "sweep.metric=val/loss.min", "sweep.count=1")
        start("exp.py", "sweep.run", "-m", url, "with", *sweep, "sweep.id=lr")
        start("exp.py", "sweep.run", "with", *sweep, "sweep.id=lr_folder")
    start("-m", "runs", "sync", "my_runs")
    for store in ("my_runs", url):
        start("-m", "runs", "--store", store, "tag", "1", "best", "paper-1")
        start("-m", "runs", "--store", store, "note", "1", "the first one")
    start("-m", "runs", "export", "1", "-o", "run_1.zip")


def _environment() -> str:
    """Return the Python of an environment in the lab that has the packages of the present one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", LAB / "venv"], check=True)
    packages = next((LAB / "venv/lib").glob("python*/site-packages"))
    # By links with neutral names, as tracebacks hold the paths of files.
    links = []
    for number, path in enumerate(path for path in sys.path if path.endswith("-packages")):
        links.append(LAB.with_name(f"packages-{number}") / "site-packages")
        links[-1].parent.mkdir()
        links[-1].symlink_to(path)
    (packages / "present.pth").write_text("\n".join(map(str, links)))
    return str(LAB / "venv/bin/python")


def dump(url: str) -> None:
    """Write each collection of the database as a BSON file, as `mongodump` does.

    Args:
        url: The server.
    """
    (LAB / "database").mkdir()
    with pymongo.MongoClient(url) as client:
        for name in client.lab.list_collection_names():
            documents = client.lab[name].find().sort("_id")
            (LAB / "database" / f"{name}.bson").write_bytes(b"".join(map(bson.encode, documents)))


def anonymize() -> None:
    """Replace the id of the machine's boot.

    Raises:
        RuntimeError: If a file names this machine, its user or one of their folders.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    names = b"|".join(re.escape(name.encode()) for name in json.loads(os.environ["REAL_NAMES"]))
    for path in (path for folder in ("my_runs", "database") for path in (LAB / folder).rglob("*") if path.is_file()):
        content = path.read_bytes()
        is_source = path.parent.name == "_sources" or path.name == "fs.chunks.bson"
        if not is_source and (found := re.search(rb"(?<![a-z])(?:%b)(?![a-z])" % names, text_in(path.suffix, content))):
            raise RuntimeError(f"{path} names {found.group()!r}")
        if boot in content:
            path.write_bytes(content.replace(boot, UNKNOWN_BOOT))


def text_in(suffix: str, content: bytes) -> bytes:
    """Return the text in a file, without numbers in binary, which can look like a short name by chance.

    Args:
        suffix: The suffix of its name.
        content: Its bytes: BSON, text in UTF-8, or any other format, of which runs of 16 printable characters count.
    """
    if suffix == ".bson":
        return repr(bson.decode_all(content)).encode()
    try:
        content.decode()
    except UnicodeDecodeError:
        return b"\n".join(re.findall(rb"[ -~]{16,}", content))
    return content


def store_uncompressed(archive: Path) -> None:
    """Write an archive again without its compression: its files are in the folder of runs too, and `xz` finds them.

    Args:
        archive: The archive.
    """
    with zipfile.ZipFile(archive) as made:
        files = [(entry.filename, made.read(entry)) for entry in made.infolist()]
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as stored:
        for name, content in files:
            stored.writestr(zipfile.ZipInfo(name), content)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return a member of the archive without its owner; None for an index, which is rebuilt."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = HOST
    return None if Path(entry.name).name.startswith((".index", "index.")) else entry


def _git(folder: str, *words: str) -> str:
    done = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    main(*sys.argv[1:])
