"""The options `-F`, `-m` and `--tensorboard` of an experiment's command line, with Sacred's forms."""

from __future__ import annotations

from typing import Any

from sacred.commandline_options import cli_option

__all__ = ["file_option", "mongo_option", "tensorboard_option"]


@cli_option("-F", "--file_storage")
def file_option(args: str, run: Any) -> None:
    """Record the run in a folder below this one."""
    from observers.file.observer import FileObserver

    observer = FileObserver(args)
    # The experiment may record there by itself.
    if observer not in run.observers:
        run.observers.append(observer)


@cli_option("-m", "--mongo_db")
def mongo_option(args: str, run: Any) -> None:
    """Deliver the run to a MongoDB: [host:port:]db_name[.collection[:id]][!priority], or a mongodb:// URL."""
    from observers.mongo.destination import parse_mongo_option
    from observers.mongo.observer import MongoObserver

    run.observers.append(MongoObserver(**parse_mongo_option(args)))


@cli_option("-T", "--tensorboard", is_flag=True)
def tensorboard_option(args: bool, run: Any) -> None:
    """Write event files for TensorBoard, too, into the run's folder (extra tensorboard)."""
    from observers.tensorboard.observer import TensorBoardObserver

    run.observers.append(TensorBoardObserver())
