"""The bundle of a training step that was not finite: everything needed to examine and to repeat it.

checkpoints/nonfinite-000000120/     named after the step; beside the states of the training
    incident.json    the cause, the place in the training, losses and gradient norms before it
    config.json      the run's config
    batch.pt         the micro-batches of the step; tensors and plain values, as in checkpoints
    state.pt         the state of the training from before the step; a checkpoint

The folder appears as a whole or not at all. It replaces another one atomically where the file system can exchange two
folders, as Linux's own can; elsewhere, as on network file systems, a kill between two renames leaves neither. A killed
process may leave a folder that ends in `.tmp`, which the next session of the run removes.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from sacristan.experiments.running.replaying import INCIDENT
from sacristan.ingredients.checkpoints.files import load_checkpoint, read_file, save_checkpoint
from sacristan.ingredients.errors import CheckpointError
from sacristan.observers.record.files import make_folder, sync_files, sync_folder
from sacristan.observers.record.schema import CONFIG

__all__ = ["Bundle", "like", "on_cpu", "read_bundle", "write_bundle"]

FORMAT = 1
_BATCH, _STATE = "batch.pt", "state.pt"
# Entries of an incident that a replay needs.
_REQUIRED = ("training", "epoch", "step", "summary")
# Of Linux: renameat2(2).
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@dataclasses.dataclass(frozen=True)
class Bundle:
    """The content of a bundle.

    Attributes:
        path: Its folder.
        incident: The content of `incident.json`.
        state: The state of the training from before the step.
        group: The micro-batches of the step, on the CPU, in plain containers.
    """

    path: Path
    incident: Mapping[str, Any]
    state: Mapping[str, Any]
    group: Sequence[Any]


def on_cpu(batch: Any) -> Any:
    """Return a copy of a batch on the CPU, in plain dicts, lists and tuples, as files hold it.

    Values that are neither containers nor tensors stay as they are.
    """
    if isinstance(batch, Tensor):
        return batch.detach().to("cpu", copy=True)
    if isinstance(batch, Mapping):
        return {name: on_cpu(item) for name, item in batch.items()}
    if isinstance(batch, list | tuple):
        return (list if isinstance(batch, list) else tuple)(map(on_cpu, batch))
    return batch


def like(template: Any, batch: Any) -> Any:
    """Return a batch from `on_cpu` in its own containers again, such as named tuples.

    Parts that the template lacks stay plain.
    """
    if isinstance(batch, dict) and isinstance(template, Mapping):
        items = {name: like(template.get(name), item) for name, item in batch.items()}
        return items if type(template) is dict else type(template)(items)  # type: ignore[call-arg]
    if isinstance(batch, list) and isinstance(template, list):
        return [like(next(iter(template), None), item) for item in batch]
    is_tuple = isinstance(batch, tuple) and isinstance(template, tuple)
    if is_tuple and len(batch) == len(template):
        parts = tuple(map(like, template, batch))
        return type(template)(*parts) if hasattr(template, "_fields") else parts
    return batch


def write_bundle(
    folder: Path,
    incident: Mapping[str, Any],
    config: Mapping[str, Any],
    state: Mapping[str, Any],
    group: Sequence[Any],
) -> Path:
    """Write a bundle, and return its folder. It replaces a bundle of the same step.

    If it cannot be written, nothing of it is left.
    """
    path = folder / f"nonfinite-{incident['step']:09d}"
    make_folder(folder)
    temporary = folder / f".{path.name}.{secrets.token_hex(4)}.tmp"
    temporary.mkdir()
    try:
        files = {INCIDENT: {"format": FORMAT, **incident}, CONFIG: config}
        for name, content in files.items():
            (temporary / name).write_text(json.dumps(content, indent=2), encoding="utf-8")
        save_checkpoint(state, temporary / _STATE)
        save_checkpoint({"group": list(group)}, temporary / _BATCH)
        # A batch that cannot be loaded again is an error now.
        read_file(temporary / _BATCH, check=False)
        sync_files(temporary / name for name in files)
        replaced = temporary
        if not _exchange(temporary, path):
            replaced = temporary.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
            with contextlib.suppress(FileNotFoundError):
                path.replace(replaced)
            temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            shutil.rmtree(temporary)
        raise
    sync_folder(folder)
    shutil.rmtree(replaced, ignore_errors=True)
    return path


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders atomically; return False where one is missing, or the file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    return renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0


def read_bundle(path: Path) -> Bundle:
    """Read a bundle, such as my_runs/3/checkpoints/nonfinite-000000120. Runs no code, whatever it holds."""
    try:
        incident = json.loads((path / INCIDENT).read_text(encoding="utf-8"))
        if incident["format"] != FORMAT:
            use = "use the version of the lab that saved it"
            raise CheckpointError(f"{path}: has format {incident['format']}, this version reads {FORMAT}; {use}")
        missing = [name for name in _REQUIRED if name not in incident]
        if missing:
            raise KeyError(missing[0])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"bundle: {path} is none that can be read ({type(error).__name__}: {error}); expected a folder such as "
            "my_runs/3/checkpoints/nonfinite-000000120"
        ) from error
    group = read_file(path / _BATCH, check=True, entry="bundle")["group"]
    return Bundle(path, incident, load_checkpoint(path / _STATE), group)
