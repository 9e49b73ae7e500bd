"""Make the samples of Trackio, DVCLive, Hydra and Neptune that the tests of `runs import` read.

    python tests/data/trackers/make_more_samples.py FOLDER

Each tracker's own package writes its sample, and reads it for `<kind>.json`: install `trackio dvclive hydra-core
tensorboard torch pyarrow` in a separate environment, and start this on a host with a neutral name. Neptune's exporter
is on no index: its sample is written here after the schema in its README, and `neptune.json` holds the values written.
Copy `*.zip` and `*.json` here.
"""

from __future__ import annotations

import datetime
import decimal
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

LOSSES = [1 / (step + 1) for step in range(40)]
ODD = [float("nan"), float("inf"), float("-inf")]
PARTS = {"trackio": "trackio", "dvclive": "repo", "hydra": "hydra", "neptune": "exports"}


def written(points: list[tuple[Any, float, float | None]]) -> list[Any]:
    """Return points (step, value, seconds since 1970) as JSON holds them."""
    return [[step, repr(float(value)), at] for step, value, at in points]


def make_trackio() -> dict[str, Any]:
    import numpy as np
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    for name in ("first", "second"):
        run = trackio.init(project="digits", name=name, group="seeds", config={"lr": 0.1, "net": {"width": 3}},
                           auto_log_gpu=False, embed=False)  # fmt: skip
        for step, loss in enumerate(LOSSES):
            trackio.log({"train/loss": loss, "val": {"accuracy": step / 40}})
        for value in ODD:
            trackio.log({"odd": value, "word": "text"}, step=50)
        trackio.log(
            {
                "image": trackio.Image(np.zeros((4, 6, 3), np.uint8), caption="black"),
                "counts": trackio.Histogram([1, 2, 3], num_bins=2),
                "table": trackio.Table(columns=["a", "b"], data=[[1.5, "x"], [2, "y"]]),
                "notes": trackio.Markdown("# some *words*"),
            },
            step=51,
        )
        trackio.log_system({"gpu": {"power": 70.5}})
        trackio.alert("high loss", "it grows", level=trackio.AlertLevel.WARN)
        if name == "first":
            Path("model.txt").write_text("weights")
            artifact = trackio.Artifact("model", type="model")
            artifact.add_file("model.txt")
            run.log_artifact(artifact)
        trackio.finish()
    expected = {}
    for record in SQLiteStorage.get_run_records("digits"):
        key = {"run": record["name"], "run_id": record["id"]}
        points: dict[str, list[Any]] = {}
        for row in SQLiteStorage.get_logs("digits", **key):
            at = datetime.datetime.fromisoformat(row["timestamp"]).timestamp()
            row["val/accuracy"] = row.pop("val", {}).get("accuracy")
            for metric in ("train/loss", "val/accuracy", "odd"):
                if row.get(metric) is not None:
                    points.setdefault(metric, []).append((row["step"], row[metric], at))
        for number, row in enumerate(SQLiteStorage.get_system_logs("digits", **key)):
            at = datetime.datetime.fromisoformat(row["timestamp"]).timestamp()
            points["system/gpu/power"] = [(number, row["gpu"]["power"], at)]
        config = SQLiteStorage.get_run_config("digits", **key)
        expected[f"digits/{record['id']}"] = {
            "name": record["name"],
            "config": {name: value for name, value in config.items() if not name.startswith("_")},
            "start": datetime.datetime.fromisoformat(config["_Created"]).timestamp(),
            "metrics": {name: written(triples) for name, triples in points.items()},
        }
    return expected


def make_dvclive() -> dict[str, Any]:
    import numpy as np
    from dvclive import Live
    from dvclive.utils import parse_metrics

    with Live("repo/dvclive", save_dvc_exp=False, dvcyaml=False) as live:
        live.log_params({"lr": 0.1, "net": {"width": 3}})
        for step, loss in enumerate(LOSSES):
            live.log_metric("train/loss", loss, timestamp=True)
            live.log_metric("accuracy", step / 40)
            if step < len(ODD):
                live.log_metric("odd", ODD[step])
            if step % 20 == 0:
                live.log_image(f"samples/{step}.png", np.zeros((4, 6, 3), np.uint8))
            live.next_step()
        live.log_metric("word", "text", plot=True)
        live.log_image("last.png", np.zeros((4, 6, 3), np.uint8))
        live.log_plot("points", [{"x": 1, "y": 2}], x="x", y="y")
        live.summary["best"] = 0.9
        history, _ = parse_metrics(live)
    metrics = {}
    for name, rows in history.items():
        metric = Path(name).relative_to("repo/dvclive/plots/metrics").with_suffix("").as_posix()
        column = Path(metric).name
        if metric != "word":
            metrics[metric] = written([
                (int(row["step"]), float(row[column]), int(row["timestamp"]) / 1000 if "timestamp" in row else None)
                for row in rows
            ])  # fmt: skip
    return {"metrics": metrics, "config": {"lr": 0.1, "net": {"width": 3}}}


APP = """
import csv
import logging
import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf


@hydra.main(version_base=None, config_path=".", config_name="config")
def app(cfg):
    folder = Path(HydraConfig.get().runtime.output_dir)
    logging.getLogger(__name__).info("hello from the run")
    if cfg.logger == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(folder / "tb")) as writer:
            for step in range(40):
                writer.add_scalar("train/loss", cfg.optimizer.lr / (step + 1), step)
    if cfg.logger in ("csv", "tensorboard"):
        with (folder / "metrics.csv").open("w", newline="") as stream:
            rows = csv.writer(stream)
            rows.writerow(["step", "val/accuracy"])
            rows.writerows([step, step / 40] for step in range(40))
    (folder / "resolved.json").write_text(__import__("json").dumps(OmegaConf.to_container(cfg, resolve=True)))


app()
"""


def make_hydra() -> dict[str, Any]:
    from omegaconf import OmegaConf

    folder = Path("hydra").resolve()
    folder.mkdir()
    Path("train.py").write_text(APP)
    Path("config.yaml").write_text(
        "seed: 1\nlogger: none\noptimizer:\n  lr: 1e-3\n  warmup: ${.lr}\nscheduler:\n  lr: ${optimizer.lr}\n"
        "home: ${oc.env:HYDRA_SAMPLE,nowhere}\nlist: [1, '${seed}']\n"
    )
    for words in (
        ["logger=tensorboard", "optimizer.lr=0.5", f"hydra.run.dir={folder}/outputs/2026-01-01/12-00-00"],
        [f"hydra.run.dir={folder}/outputs/2026-01-01/12-30-00"],
        ["-m", "logger=csv", "seed=1,2", f"hydra.sweep.dir={folder}/multirun/2026-01-02/08-00-00"],
    ):
        subprocess.run([sys.executable, "train.py", *words], check=True, stdout=subprocess.DEVNULL)
    expected = {}
    for path in sorted(folder.rglob(".hydra")):
        resolved = json.loads((path.parent / "resolved.json").read_text())
        (path.parent / "resolved.json").unlink()
        stored = OmegaConf.to_container(OmegaConf.load(path / "config.yaml"), resolve=False)
        metrics: dict[str, list[Any]] = {}
        if resolved["logger"] != "none":
            metrics["val/accuracy"] = [[step, repr(step / 40)] for step in range(40)]
        if resolved["logger"] == "tensorboard":
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

            events = EventAccumulator(str(path.parent / "tb"))
            events.Reload()
            metrics["train/loss"] = [[event.step, repr(event.value)] for event in events.Scalars("train/loss")]
        expected[path.parent.relative_to(folder).as_posix()] = {
            "config": {**resolved, "home": stored["home"]},  # a resolver of the process
            "overrides": list(OmegaConf.load(path / "overrides.yaml")),
            "metrics": metrics,
        }
    return expected


def make_neptune() -> dict[str, Any]:
    import hashlib

    import pyarrow as pa
    import pyarrow.parquet as parquet

    texts, numbers = pa.list_(pa.string()), pa.list_(pa.float64())
    moment = pa.timestamp("ms", tz="UTC")
    schema = pa.schema([
        ("project_id", pa.string()), ("run_id", pa.string()), ("attribute_path", pa.string()),
        ("attribute_type", pa.string()), ("step", pa.decimal128(18, 6)), ("timestamp", moment),
        ("int_value", pa.int64()), ("float_value", pa.float64()), ("string_value", pa.string()),
        ("bool_value", pa.bool_()), ("datetime_value", moment), ("string_set_value", texts),
        ("file_value", pa.struct([("path", pa.string())])),
        ("histogram_value", pa.struct([("type", pa.string()), ("edges", numbers), ("values", numbers)])),
    ])  # fmt: skip
    project, began = "team/digits", datetime.datetime(2025, 11, 3, 8, 30, tzinfo=datetime.UTC)

    def safe(name: str) -> str:
        digest = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
        return "".join(each if each.isalnum() or each in "_-" else "_" for each in name) + f"-{digest}"

    def row(run: str, path: str, kind: str, value: Any, step: Any = None, at: Any = None) -> dict[str, Any]:
        column = "float_value" if kind == "float_series" else "file_value" if kind.startswith("file") else (
            f"{kind.removesuffix('_series')}_value")  # fmt: skip
        step = None if step is None else decimal.Decimal(str(step)).quantize(decimal.Decimal("1.000000"))
        time = None if at is None else began + datetime.timedelta(milliseconds=at)
        return {"project_id": project, "run_id": run, "attribute_path": path, "attribute_type": kind,
                "step": step, "timestamp": time, column: value}  # fmt: skip

    expected = {}
    for run, failed in (("RUN-1", False), ("RUN-2", True)):
        files = Path("exports/files", safe(project), run)
        (files / "samples").mkdir(parents=True)
        (files / "model.txt").write_text("weights")
        (files / "samples" / "0.png").write_bytes(PNG)
        histogram = {"type": "COUNTING", "edges": [0, 1, 2], "values": [3, 4]}
        points = {
            "train/loss": [(step, loss, 1000 * step) for step, loss in enumerate(LOSSES)],
            "odd": [(step, value, step) for step, value in enumerate(ODD)],
            "fraction": [(step / 10, step * 2.0, step) for step in range(40)],
            "monitoring/1/cpu": [(step, 50.0 + step, 10 * step) for step in range(3)],
        }
        parts = [
            [
                row(run, "sys/name", "string", f"{run} of digits"),
                row(run, "sys/id", "string", run),
                row(run, "sys/failed", "bool", failed),
                row(run, "sys/tags", "string_set", ["baseline", "first try"]),
                row(run, "sys/description", "string", "a note"),
                row(run, "sys/owner", "string", "user"),
                row(run, "sys/hostname", "string", "host"),
                row(run, "sys/creation_time", "datetime", began),
                row(run, "sys/ping_time", "datetime", began + datetime.timedelta(seconds=60)),
                row(run, "parameters/lr", "float", 0.1),
                row(run, "parameters/net/width", "int", 3),
                row(run, "parameters/nesterov", "bool", False),
                row(run, "optimizer", "string", "adam"),
                row(run, "source_code/diff", "string", "none"),
            ],
            # The exporter makes its rows of a table in which NaN is null.
            [row(run, name, "float_series", None if value != value else value, step, at)
             for name, triples in points.items() for step, value, at in triples],
            [
                row(run, "monitoring/1/stdout", "string_series", "hello from the run", 0, 5),
                row(run, "notes", "string_series", "some *words*", 1, 6),
                row(run, "counts", "histogram_series", histogram, 2, 7),
                row(run, "samples", "file_series", {"path": f"{run}/samples/0.png"}, 0, 8),
                row(run, "model", "file", {"path": f"{run}/model.txt"}),
                row(run, "lost", "file", {"path": f"{run}/lost.txt"}),
            ],
        ]  # fmt: skip
        folder = Path("exports/data", safe(project))
        folder.mkdir(parents=True, exist_ok=True)
        for number, rows in enumerate(parts):
            parquet.write_table(pa.Table.from_pylist(rows, schema), folder / f"{safe(run)}_part_{number}.parquet")
        expected[f"{safe(project)}/{safe(run)}"] = {
            "name": f"{run} of digits",
            "start": began.timestamp(),
            "metrics": {
                name: written([(step, value, began.timestamp() + at / 1000) for step, value, at in triples])
                for name, triples in points.items()
            },
        }
    return expected


PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010800000000"
    "3a7e9b550000000a49444154789c63600000000200015e5c2ee30000000049454e44ae426082"
)


def main(folder: Path) -> None:
    folder.mkdir()
    os.chdir(folder)
    for kind, part in PARTS.items():
        environment = {**os.environ, "TRACKIO_DIR": str(folder / "trackio"), "USER": "user", "LOGNAME": "user"}
        words = [sys.executable, str(SCRIPT), kind]
        process = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        expected = json.loads(process.stdout.splitlines()[-1])
        Path(f"{kind}.json").write_text(json.dumps(expected, indent=1) + "\n")
        with zipfile.ZipFile(f"{kind}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(Path(part).rglob("*")):
                if path.is_file() and path.suffix != ".lock":
                    archive.write(path)


SCRIPT = Path(__file__).resolve()

if __name__ == "__main__":
    if sys.argv[1] in PARTS:
        print(json.dumps(globals()[f"make_{sys.argv[1]}"]()), flush=True)
    else:
        main(Path(sys.argv[1]).resolve())
