"""Reading other trackers' runs: points a second of `sacristan import` beside the tracker's own, in one process.

    python benchmarks/importing.py [--points 50000] [--rounds 3] [--kinds csv aim ...]
    python benchmarks/importing.py --runs 10000

Each tracker's own package writes one run with one metric; kinds whose package is not installed are skipped, and named.
The files of Comet, ClearML, Neptune, Trackio, DVCLive and Hydra are written without their packages, in the same form.
"reader" is the lab's reader alone, "import" the whole `import_foreign` into a new folder of runs, and "own" the
tracker's way to read all points of a metric. Each is the best of the rounds; the ratio is reader to own. W&B and
ClearML have no reader of offline files, and Comet's reads no steps. With `--runs`, many runs of ten points are imported
twice, first new and then present; prints seconds, CPU, memory, and the time of a run at the beginning and at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import resource
import shutil
import sqlite3
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from sacristan.runs.stores.opening import open_store
from sacristan.runs.transfer.foreign import import_foreign
from sacristan.runs.transfer.trackers import reader_for

# Writes a run of so many points into a folder; returns what to import, and the tracker's own way to read the points.
Maker = Callable[[Path, int], tuple[Path, Callable[[], int] | None]]


def make_csv(folder: Path, num_points: int) -> tuple[Path, Callable[[], int]]:
    import pandas

    path = folder / "metrics.csv"
    with path.open("w") as stream:
        csv.writer(stream).writerows([("step", "loss"), *((step, 1 / (step + 1)) for step in range(num_points))])
    return path, lambda: len(pandas.read_csv(path)["loss"].to_numpy())


def make_tensorboard(folder: Path, num_points: int) -> tuple[Path, Callable[[], int]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder / "logs")) as writer:
        for step in range(num_points):
            writer.add_scalar("loss", 1 / (step + 1), step)

    def own() -> int:
        accumulator = EventAccumulator(str(folder / "logs"), size_guidance={"scalars": 0})
        accumulator.Reload()
        return len(accumulator.Scalars("loss"))

    return folder / "logs", own


def make_mlflow(folder: Path, num_points: int) -> tuple[Path, Callable[[], int]]:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    run = client.create_run(client.create_experiment("digits")).info.run_id
    for first in range(0, num_points, 1000):
        steps = range(first, min(first + 1000, num_points))
        client.log_batch(
            run, metrics=[Metric("loss", 1 / (step + 1), 1_700_000_000_000 + step, step) for step in steps]
        )
    return folder / "mlflow.db", lambda: len(client.get_metric_history(run, "loss"))


def make_wandb(folder: Path, num_points: int) -> tuple[Path, None]:
    import wandb

    settings = wandb.Settings(x_disable_stats=True, x_disable_machine_info=True, console="off", silent=True)
    run = wandb.init(project="digits", mode="offline", dir=folder, settings=settings)
    for step in range(num_points):
        run.log({"loss": 1 / (step + 1)})
    run.finish()
    return next(folder.rglob("*.wandb")), None


def make_aim(folder: Path, num_points: int) -> tuple[Path, Callable[[], int]]:
    import aim
    from aim.sdk.run import Run

    run = aim.Run(repo=str(folder), system_tracking_interval=None, log_system_params=False, capture_terminal_logs=False)
    for step in range(num_points):
        run.track(1 / (step + 1), name="loss", step=step)
    key = run.hash
    run.close()
    shutil.rmtree(folder / ".aim" / "meta" / "index")  # which does not know the run until Aim's server has indexed it

    def own() -> int:
        [metric] = Run(key, repo=aim.Repo(str(folder)), read_only=True).metrics()
        return len(metric.data.numpy()[0])

    return folder, own


def make_comet(folder: Path, num_points: int) -> tuple[Path, None]:
    stream = io.StringIO()
    for step in range(num_points):
        metric = {"metricName": "loss", "metricValue": 1 / (step + 1), "step": step, "epoch": None}
        payload = {"local_timestamp": 1_700_000_000_000 + step, "message_id": step, "metric": metric}
        stream.write(json.dumps({"payload": payload, "type": "metric_msg"}) + "\n")
    _zip(
        folder / "x.zip",
        {"experiment.json": '{"offline_id": "x", "start_time": 1, "stop_time": 2}', "messages.json": stream},
    )
    return folder / "x.zip", None


def make_clearml(folder: Path, num_points: int) -> tuple[Path, None]:
    stream = io.StringIO()
    for step in range(num_points):
        event = {"timestamp": 1_700_000_000_000 + step, "type": "training_stats_scalar", "iter": step}
        stream.write(json.dumps([{**event, "metric": "train", "variant": "loss", "value": 1 / (step + 1)}]) + "\n")
    _zip(folder / "offline-x.zip", {"task.json": "{}", "metrics.jsonl": stream, "log.jsonl": ""})
    return folder / "offline-x.zip", None


def make_neptune(folder: Path, num_points: int) -> tuple[Path, Callable[[], int]]:
    import pyarrow
    from pyarrow import parquet

    file = folder / "RUN-1-0123456789abcdef_part_0.parquet"
    steps, values = range(num_points), [1 / (step + 1) for step in range(num_points)]
    texts = {
        "project_id": "team/digits", "run_id": "RUN-1", "attribute_path": "loss", "attribute_type": "float_series",
    }  # fmt: skip
    columns = {name: pyarrow.array([text] * num_points) for name, text in texts.items()}
    columns["step"] = pyarrow.array([Decimal(step) for step in steps], pyarrow.decimal128(18, 6))
    times = [1_700_000_000_000 + step for step in steps]
    columns["timestamp"] = pyarrow.array(times, pyarrow.timestamp("ms", "UTC"))
    columns["float_value"] = pyarrow.array(values)
    parquet.write_table(pyarrow.table(columns), file)
    return folder, lambda: len(parquet.read_table(file)["float_value"].to_numpy())


def make_trackio(folder: Path, num_points: int) -> tuple[Path, Callable[[], int]]:
    path = folder / "digits.db"
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp TEXT, run_name TEXT, step INTEGER, metrics TEXT)"
        )
        rows = (
            ("2026-01-01T10:00:00", "one", step, json.dumps({"loss": 1 / (step + 1)})) for step in range(num_points)
        )
        database.executemany("INSERT INTO metrics (timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?)", rows)

    def own() -> int:
        with contextlib.closing(sqlite3.connect(path)) as database:
            return len([json.loads(text)["loss"] for (text,) in database.execute("SELECT metrics FROM metrics")])

    return path, own


def make_dvclive(folder: Path, num_points: int) -> tuple[Path, Callable[[], int]]:
    import pandas

    path = folder / "dvclive" / "plots" / "metrics" / "loss.tsv"
    path.parent.mkdir(parents=True)
    rows = ((step, 1 / (step + 1)) for step in range(num_points))
    with path.open("w") as stream:
        csv.writer(stream, delimiter="\t").writerows([("step", "loss"), *rows])
    return folder / "dvclive", lambda: len(pandas.read_csv(path, sep="\t")["loss"].to_numpy())


def make_hydra(folder: Path, num_points: int) -> tuple[Path, Callable[[], int]]:
    (folder / ".hydra").mkdir()
    for name, text in {"config": "lr: 0.1\n", "overrides": "[]\n", "hydra": "hydra: {job: {name: train}}\n"}.items():
        (folder / ".hydra" / f"{name}.yaml").write_text(text)
    _, own = make_tensorboard(folder, num_points)
    return folder, own


def _zip(path: Path, files: dict[str, str | io.StringIO]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content if isinstance(content, str) else content.getvalue())


MAKERS: dict[str, Maker] = {
    "csv": make_csv,
    "tensorboard": make_tensorboard,
    "mlflow": make_mlflow,
    "wandb": make_wandb,
    "aim": make_aim,
    "comet": make_comet,
    "clearml": make_clearml,
    "neptune": make_neptune,
    "trackio": make_trackio,
    "dvclive": make_dvclive,
    "hydra": make_hydra,
}


def read(path: Path, kind: str) -> int:
    """Read all points with the lab's reader."""
    return sum(found.read().num_points for found in reader_for(path, kind).find(path))


def import_whole(path: Path, kind: str) -> int:
    """Import the run into a new store."""
    with tempfile.TemporaryDirectory() as place, open_store(place, create=True) as store:
        return sum(imported.num_points for imported in import_foreign(path, store, kind))


def rate(count: Callable[[], int], num_points: int, rounds: int) -> float:
    """Return the best points a second.

    Raises:
        SystemExit: If not all points were read.
    """
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        num_read = count()
        best = min(best, time.perf_counter() - start)
        if num_read != num_points:
            raise SystemExit(f"read {num_read} points, expected {num_points}")
    return num_points / best


def import_many(num_runs: int) -> None:
    """Import CSV files of ten points each, twice, and print the time, the CPU and the peak of memory."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as place:
        text = "step,loss\n" + "".join(f"{step},{1 / (step + 1)}\n" for step in range(10))
        for number in range(num_runs):
            Path(folder, f"run{number:06}.csv").write_text(text)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for outcome in ("new", "present"):
            _import_each(folder, place, outcome, num_runs)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"peak of memory {peak / 1024:,.0f} MiB, {before / 1024:,.0f} MiB before the import")


def _import_each(folder: str, place: str, outcome: str, num_runs: int) -> None:
    times, start_cpu = [time.perf_counter()], time.process_time()
    with open_store(place, create=True) as store:
        for imported in import_foreign(folder, store, "csv"):
            if imported.outcome != outcome:
                raise SystemExit(f"got {imported.outcome}, expected {outcome}: {imported.place}")
            times.append(time.perf_counter())
    seconds, cpu = times[-1] - times[0], time.process_time() - start_cpu
    if len(times) != num_runs + 1:
        raise SystemExit(f"imported {len(times) - 1} runs, expected {num_runs}")
    print(f"{num_runs} runs {outcome} in {seconds:.1f} s, {num_runs / seconds:,.0f} runs a second; {cpu:.1f} s of CPU")
    part = max(1, num_runs // 10)
    first, last = times[part] - times[0], times[-1] - times[-part - 1]
    print(f"a run of the first tenth takes {1e3 * first / part:.2f} ms, of the last {1e3 * last / part:.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=MAKERS, default=[*MAKERS])
    parser.add_argument("--runs", type=int, help="import so many small CSV files instead")
    arguments = parser.parse_args()
    if arguments.runs:
        import_many(arguments.runs)
        return
    print(f"{arguments.points} points; thousand points a second, best of {arguments.rounds}\n")
    print("| kind | reader | import | own | reader / own |\n| --- | --- | --- | --- | --- |")
    for kind in arguments.kinds:
        with tempfile.TemporaryDirectory() as folder:
            try:
                with contextlib.redirect_stdout(sys.stderr):
                    path, own = MAKERS[kind](Path(folder), arguments.points)
            except ImportError as error:
                print(f"| {kind} | skipped: {error} | | | |", flush=True)
                continue
            ours = rate(partial(read, path, kind), arguments.points, arguments.rounds)
            whole = rate(partial(import_whole, path, kind), arguments.points, arguments.rounds)
            theirs = rate(own, arguments.points, arguments.rounds) if own else None
            last = f"{theirs / 1000:,.0f} | {ours / theirs:.2f} |" if theirs else "- | - |"
            print(f"| {kind} | {ours / 1000:,.0f} | {whole / 1000:,.0f} | {last}", flush=True)


if __name__ == "__main__":
    main()
