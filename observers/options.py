"""Options of an experiment's command line, `-F`, `-m`, `-T`, `-E`, `-R`, `-A`, `-e` and `-f`, with Sacred's forms."""

from __future__ import annotations

import fnmatch
import logging
import os
from pathlib import Path
from typing import Any

from sacristan.configs.importing import import_sacred
from sacristan.configs.map import abbreviated

# First, because other modules import Sacred.
import_sacred()

from sacred.commandline_options import cli_option

from sacristan.observers.notifying import ADDRESSES_VARIABLE
from sacristan.observers.record.redaction import is_secret_name, redact

_log = logging.getLogger(__name__)

_MOST_NAMES = 5  # in a message


@cli_option("-F", "--file_storage")
def file_option(args: str, run: Any) -> None:
    """Record the run in a folder below this one."""
    from sacristan.observers.file.observer import FileObserver

    observer = FileObserver(args)
    # The experiment may already record there.
    if observer not in run.observers:
        run.observers.append(observer)


@cli_option("-m", "--mongo_db")
def mongo_option(args: str, run: Any) -> None:
    """Send the run to a MongoDB, too: [host:port:]db[.collection[:id]][!priority], or a mongodb:// URL."""
    from sacristan.observers.mongo import parse_mongo_option
    from sacristan.observers.mongo.observer import MongoObserver

    run.observers.append(MongoObserver(**parse_mongo_option(args)))


@cli_option("-T", "--tensorboard", is_flag=True)
def tensorboard_option(args: bool, run: Any) -> None:
    """Write event files for TensorBoard, too, into the run's folder (extra tensorboard)."""
    from sacristan.observers.tensorboard.observer import TensorBoardObserver

    run.observers.append(TensorBoardObserver())


@cli_option("-E", "--environment")
def environment_option(args: str, run: Any) -> None:
    """Record environment variables: NAME,NAME,... with * for any letters; `sacristan reproduce` compares them."""
    values: dict[str, str | None] = {}
    for name in filter(None, map(str.strip, args.split(","))):
        names = fnmatch.filter(os.environ, name) if "*" in name else [name]
        values |= {each: os.environ.get(each) for each in names}
    hidden = sorted(name for name in values if is_secret_name(name) or name == ADDRESSES_VARIABLE)
    if hidden:
        _log.warning("-E: not recorded, because they hold secrets, or their names suggest it: %s", ", ".join(hidden))
    run.meta_info["environment"] = {
        name: None if value is None else redact(value) for name, value in sorted(values.items()) if name not in hidden
    }


@cli_option("-R", "--no_reads", is_flag=True)
def reads_option(args: bool, run: Any) -> None:
    """Do not record which files below its folders, and which environment variables, the run reads."""


@cli_option("-A", "--anonymous", is_flag=True)
def anonymous_option(args: bool, run: Any) -> None:
    """Record the name of neither the user nor the machine."""


@cli_option("-e", "--enforce_clean", is_flag=True)
def clean_option(args: bool, run: Any) -> None:
    """Reject the run if its git repository has changes, or if a source of the run is not committed."""
    from sacristan.observers.provenance import uncommitted_files

    info = run.experiment_info
    base = Path(info["base_dir"])
    names = uncommitted_files(base / (info["mainfile"] or "."), [base / name for name, _ in info["sources"]])
    if names is None:
        raise RuntimeError(f"-e: git cannot compare {base} with a commit; commit the sources, or leave out -e")
    if names:
        texts = abbreviated(names, _MOST_NAMES, " and {} more")
        raise RuntimeError(f"-e: not committed: {texts}; commit them, or leave out -e")


@cli_option("-f", "--force", is_flag=True)
def force_option(args: bool, run: Any) -> None:
    """Accept settings that no scope declares, values of other types than declared, and settings that nothing reads."""
    run.force = True
