"""Make the samples of other trackers' files that the tests of `runs import` read.

    python tests/data/trackers/make_samples.py FOLDER

Each tracker's own package writes them: install `mlflow-skinny sqlalchemy alembic wandb aim comet_ml clearml` in
a separate environment, and start a copy of this in a neutral folder, on a host with a neutral name. `expected*.json`
holds what the tracker's own reader reads. Copy `*.zip` and `expected*.json` here. Further arguments name the only
trackers to make samples of.
"""

from __future__ import annotations

import base64
import csv
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

TRACKERS = ("mlflow", "wandb", "aim", "comet", "clearml")
LOSSES = [1 / (step + 1) for step in range(40)]
# An image of 6 x 4 black pixels.
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAYAAAAECAIAAAAiZtkUAAAAD0lEQVR4nGNiwABM5AoBAAHIAAngOkYNAAAAAElFTkSuQmCC"
)


def make_mlflow(address: str) -> None:
    import mlflow

    mlflow.set_tracking_uri(address)
    mlflow.set_experiment("digits")
    with mlflow.start_run(run_name="parent"):
        mlflow.log_params({"lr": 0.1, "optimizer": "adam", "nesterov": False, "decay": None})
        for step, loss in enumerate(LOSSES):
            mlflow.log_metric("train/loss", loss, step=step)
        for step, value in enumerate((float("nan"), float("inf"), float("-inf"))):
            mlflow.log_metric("odd", value, step=step)
        mlflow.set_tags({"team": "vision", "mlflow.note.content": "a note"})
        mlflow.log_text("hello", "notes/a.txt")
        mlflow.log_dict({"a": 1}, "config.json")
        with mlflow.start_run(run_name="child", nested=True):
            mlflow.log_metric("train/loss", 2, step=5)
    try:
        with mlflow.start_run(run_name="failed"):
            raise RuntimeError("on purpose")
    except RuntimeError:
        pass
    deleted = mlflow.start_run(run_name="deleted")
    mlflow.end_run()
    mlflow.delete_run(deleted.info.run_id)
    mlflow.start_run(run_name="open")
    mlflow.log_metric("train/loss", 1)
    print(json.dumps(_read_by_client(address)), flush=True)
    os._exit(0)  # leaves the last run open


def _read_by_client(address: str) -> dict[str, object]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(address)
    [experiment] = [each for each in client.search_experiments() if each.name == "digits"]
    return {
        run.info.run_id: {
            "name": run.info.run_name,
            "status": run.info.status,
            "start": run.info.start_time,
            "end": run.info.end_time,
            "params": run.data.params,
            "metrics": {
                name: [
                    [point.timestamp, point.step, repr(point.value)]
                    for point in client.get_metric_history(run.info.run_id, name)
                ]
                for name in run.data.metrics
            },
        }
        for run in client.search_runs([experiment.experiment_id])
    }


def make_wandb(ends: str) -> None:
    import numpy as np
    import wandb

    settings = wandb.Settings(x_disable_machine_info=True, host="host", username="user", console="wrap")
    run = wandb.init(
        project="digits",
        name=ends,
        config={"lr": 0.1, "net": {"width": 3}},
        tags=["first try", "baseline"],
        notes="a note",
        group="group",
        mode="offline",
        settings=settings,
    )
    print("hello from the run")
    for step, loss in enumerate(LOSSES):
        wandb.log({"train/loss": loss, "val": {"accuracy": step / 40}})
    wandb.log({"odd": float("nan")})
    wandb.log({"odd": float("inf"), "word": "text"})
    wandb.define_metric("epoch/*", step_metric="epoch")
    for epoch in range(3):
        wandb.log({"epoch": epoch, "epoch/loss": epoch * 2.0})
    table = wandb.Table(columns=["a", "b"], data=[[1.5, "x"], [float("nan"), "y"]])
    wandb.log(
        {"image": wandb.Image(np.zeros((4, 6, 3), np.uint8)), "counts": wandb.Histogram([1, 2, 3]), "table": table}
    )
    wandb.log({"train/loss": 0.0})  # a row is written when the next one begins
    run.summary["best"] = 0.9
    if ends == "killed":
        os._exit(1)
    run.finish(exit_code=0 if ends == "completed" else 3)


def make_comet(ends: str) -> None:
    import comet_ml

    switches = (
        "auto_param_logging",
        "auto_metric_logging",
        "log_code",
        "log_graph",
        "log_git_metadata",
        "log_git_patch",
    )
    options = dict.fromkeys((*switches, "log_env_details"), False)
    experiment = comet_ml.OfflineExperiment(
        workspace="team", project_name="digits", offline_directory="comet", auto_output_logging="simple", **options
    )
    experiment.set_name(ends)
    experiment.add_tags(["first try", "baseline"])
    experiment.log_parameters({"lr": 0.1, "net": {"width": 3}, "nesterov": False, "decay": None, "optimizer": "adam"})
    print("hello from the run")
    for step, loss in enumerate(LOSSES):
        experiment.log_metric("train/loss", loss, step=step, epoch=step // 10)
    for step, value in enumerate((float("nan"), float("inf"), float("-inf"))):
        experiment.log_metric("odd", value, step=step)
    with experiment.validate():
        experiment.log_metric("accuracy", 0.5, step=7)
    experiment.log_metric("word", "text", step=8)
    experiment.log_other("best", 0.9)
    experiment.log_html("<b>bold</b>")
    experiment.log_text("some words", step=3)
    Path("asset.txt").write_text("hello")
    Path("image.png").write_bytes(PNG)
    experiment.log_asset("asset.txt", file_name="notes/a.txt")
    experiment.log_image("image.png", name="image", step=5)
    experiment.log_model("net", "asset.txt")
    experiment.log_remote_asset("s3://bucket/data.csv", remote_file_name="data.csv")
    if ends == "killed":
        os._exit(1)
    if ends == "failed":
        raise RuntimeError("on purpose")
    experiment.end()


def _read_by_comet(path: Path) -> dict[str, list[str]]:
    """Return the values of each metric, as Comet's own command reads them."""
    words = [str(Path(sys.executable).with_name("comet")), "offline", "--csv", "--level", "detail"]
    lines = subprocess.run(
        [*words, "--section", "metric", "--", str(path)], check=True, stdout=subprocess.PIPE, text=True
    )
    values: dict[str, list[str]] = {}
    for row in csv.DictReader(line for line in lines.stdout.splitlines() if line.startswith('"')):
        values.setdefault(row["name"], []).append(row["value"])
    return values


def make_clearml(ends: str) -> None:
    from clearml import Task

    Task.set_offline(True)
    options = {"auto_connect_frameworks": False, "auto_resource_monitoring": False, "reuse_last_task_id": False}
    task = Task.init("digits", ends, tags=["first try", "baseline"], **options)
    task.set_comment("a note")
    task.connect({"lr": 0.1, "net": {"width": 3}, "nesterov": False, "decay": None, "optimizer": "adam"})
    task.connect({"depth": 2}, name="Model")
    task.connect_configuration({"a": [1, 2]}, name="data")
    logger = task.get_logger()
    print("hello from the run")
    for step, loss in enumerate(LOSSES):
        logger.report_scalar("train", "loss", loss, step)
    for step, value in enumerate((float("nan"), float("inf"), float("-inf"))):
        logger.report_scalar("odd", "odd", value, step)
    logger.report_single_value("best", 0.9)
    logger.report_histogram("counts", "all", [1, 2, 3], iteration=2)
    Path("image.png").write_bytes(PNG)
    logger.report_image("images", "image", iteration=5, local_path="image.png")
    Path("asset.txt").write_text("hello")
    task.upload_artifact("notes", "asset.txt")
    task.flush(wait_for_uploads=True)
    if ends == "killed":
        time.sleep(6)  # writes everything every few seconds
        os._exit(1)
    if ends == "failed":
        raise RuntimeError("on purpose")
    task.close()


def make_aim(ends: str) -> None:
    import aim
    import numpy as np

    run = aim.Run(repo=".", experiment="digits", log_system_params=False, system_tracking_interval=None)
    run.name, run.description = ends, "a note"
    run.add_tag("first try")
    run["hparams"] = {"lr": 0.1, "net": {"width": 3}, "nesterov": False, "decay": None}
    run["depth"] = 2
    for step, loss in enumerate(LOSSES):
        run.track(loss, name="loss", step=step, context={"subset": "train"})
    for step, value in enumerate((float("nan"), float("inf"), float("-inf"))):
        run.track(value, name="odd", step=step)
    run.track(0.5, name="accuracy", step=7, context={"subset": "val", "fold": 2})
    black = aim.Image(np.zeros((4, 6, 3), np.uint8))
    run.track(black, name="image", step=5)
    run.track([black, aim.Image(np.zeros((4, 6, 3), np.uint8), format="jpeg")], name="images", step=5)
    run.track(aim.Distribution(np.arange(100.0)), name="counts", step=2)
    run.track(aim.Text("some words"), name="words", step=3)
    if ends == "killed":
        time.sleep(3)
        os._exit(1)
    if ends == "failed":
        raise RuntimeError("on purpose")
    run.close()


def _read_by_aim(folder: Path) -> dict[str, Any]:
    """Return steps, values and times of each metric, as Aim reads them from a copy without its index."""
    import aim
    from aim.sdk.run import Run

    shutil.copytree(".aim", folder / ".aim")
    shutil.rmtree(folder / ".aim" / "meta" / "index")
    repository = aim.Repo(str(folder))
    runs = [Run(hash, repo=repository, read_only=True) for hash in sorted(repository.list_all_runs())]
    return {
        run.hash: {
            "name": run.name,
            "start": run.creation_time,
            "end": run.end_time,
            "metrics": {
                f"{metric.name} {json.dumps(metric.context.to_dict(), sort_keys=True)}": [
                    [int(row["step"]), repr(float(row["value"])), time]
                    for (_, row), time in zip(
                        metric.dataframe().iterrows(), sorted(metric.timestamps.values_list()), strict=True
                    )
                ]
                for metric in run.metrics()
            },
        }
        for run in runs
    }


def _run(*words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, Path(__file__).name, *words], stdout=subprocess.PIPE, **options)


def pack_mlflow() -> None:
    expected = {}
    for name, address in (("database", "sqlite:///mlflow.db"), ("files", f"file://{Path.cwd()}/files")):
        environment = {**os.environ, "MLFLOW_ALLOW_FILE_STORE": "1"}
        expected[name] = json.loads(_run("mlflow", address, check=True, env=environment).stdout)
    Path("expected.json").write_text(json.dumps(expected, indent=1))
    _pack("mlflow", "mlflow.db", "mlruns", "files")


def pack_wandb() -> None:
    for ends in ("completed", "failed", "killed"):
        _run("wandb", ends, check=False)
    _pack("wandb", "wandb")


def pack_comet() -> None:
    for ends in ("completed", "failed", "killed"):
        _run("comet", ends, check=False)
    archives = [path for path in Path("comet").iterdir() if path.stat().st_size > 100]
    expected = {path.stem: _read_by_comet(path) for path in archives}
    Path("expected_comet.json").write_text(json.dumps(expected, indent=1))
    _pack("comet", "comet")


def pack_clearml() -> None:
    for ends in ("completed", "failed", "killed"):
        _run("clearml", ends, check=False, env={**os.environ, "CLEARML_CACHE_DIR": str(Path.cwd() / "clearml")})
    _pack("clearml", "clearml")


def pack_aim() -> None:
    for ends in ("completed", "failed", "killed"):
        _run("aim", ends, check=False)
    Path("expected_aim.json").write_text(json.dumps(_read_by_aim(Path("read")), indent=1))
    _pack("aim", ".aim")


def _pack(name: str, *parts: str) -> None:
    with zipfile.ZipFile(f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(path for part in parts for path in [Path(part), *Path(part).rglob("*")]):
            if (
                path.is_file()
                and not any(each.is_symlink() for each in (path, *path.parents))
                and not {"logs", "LOG"} & {*path.parts}
            ):
                archive.write(path)


def main(folder: Path, trackers: list[str]) -> None:
    folder.mkdir()
    shutil.copyfile(__file__, folder / Path(__file__).name)  # trackers note the path of the script
    os.chdir(folder)
    for tracker in trackers or TRACKERS:
        globals()[f"pack_{tracker}"]()


if __name__ == "__main__":
    if sys.argv[1] in TRACKERS:
        globals()[f"make_{sys.argv[1]}"](sys.argv[2])
    else:
        main(Path(sys.argv[1]).resolve(), sys.argv[2:])
