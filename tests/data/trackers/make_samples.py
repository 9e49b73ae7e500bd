"""Make the samples of other trackers' files that the tests of `runs import` read.

    python tests/data/trackers/make_samples.py FOLDER

Each tracker's own package writes them: install `mlflow-skinny sqlalchemy alembic wandb` in a separate environment, and
start this in a neutral folder, on a host with a neutral name. `expected.json` holds what MLflow's own client reads.
Copy `*.zip` and `expected.json` here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

LOSSES = [1 / (step + 1) for step in range(40)]


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


def main(folder: Path) -> None:
    folder.mkdir()
    os.chdir(folder)
    expected = {}
    for name, address in (("database", "sqlite:///mlflow.db"), ("files", f"file://{Path.cwd()}/files")):
        environment = {**os.environ, "MLFLOW_ALLOW_FILE_STORE": "1"}
        words = [sys.executable, str(Path(__file__).resolve()), "mlflow", address]
        expected[name] = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, env=environment).stdout)
    for ends in ("completed", "failed", "killed"):
        subprocess.run([sys.executable, __file__, "wandb", ends], check=False, stdout=subprocess.DEVNULL)
    Path("expected.json").write_text(json.dumps(expected, indent=1))
    for name, parts in (("mlflow", ("mlflow.db", "mlruns", "files")), ("wandb", ("wandb",))):
        with zipfile.ZipFile(f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(path for part in parts for path in [Path(part), *Path(part).rglob("*")]):
                if (
                    path.is_file()
                    and not any(each.is_symlink() for each in (path, *path.parents))
                    and "logs" not in path.parts
                ):
                    archive.write(path)


if __name__ == "__main__":
    if sys.argv[1] == "mlflow":
        make_mlflow(sys.argv[2])
    elif sys.argv[1] == "wandb":
        make_wandb(sys.argv[2])
    else:
        main(Path(sys.argv[1]).resolve())
