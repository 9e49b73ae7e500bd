"""Checkpoints on disk: whole or not at all, and loaded without running code. Without Sacred."""

from __future__ import annotations

import os
import pickle
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from configs.atomic_file import replacing
from ingredients.errors import CheckpointError

__all__ = ["Checkpointer", "load_checkpoint", "load_weights", "other_data", "save_checkpoint"]

FORMAT = 1


def save_checkpoint(state: Mapping[str, Any], path: Path) -> None:
    """Write `state` to `path`: a complete new file takes the place of an old one, or the old one stays.

    Raises:
        CheckpointError: If it cannot be written; nothing half-written is left.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as stream:
            torch.save({"format": FORMAT, **state}, stream)
    except (OSError, RuntimeError, pickle.PicklingError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: cannot be written: {error}; the checkpoint before it stays") from error


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Return the state in a checkpoint, its tensors on the CPU. Runs no code, whatever the file holds.

    Raises:
        CheckpointError: If it is missing, damaged, or no checkpoint of the lab.
    """
    if not path.is_file():
        near = sorted(str(other) for other in path.parent.glob("*.pt")) if path.parent.is_dir() else []
        hint = f"there are: {', '.join(near)}" if near else "check the path"
        raise CheckpointError(f"checkpoint.path: there is no file {path}; {hint}")
    try:
        # torch itself does not compare checksums, and would load weights with flipped bits.
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise zipfile.BadZipFile(f"{damaged} has another checksum than when it was saved")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path}: is damaged, or holds more than tensors and plain values; it is not loaded, as that could run code"
        ) from error
    except Exception as error:
        # Damage shows as any exception of the unpickler, whose words help nobody.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{path}: is damaged, or no checkpoint: {reason[:200]}") from error
    if not isinstance(state, dict) or "model" not in state or "format" not in state:
        raise CheckpointError(f"{path}: is no checkpoint of this lab; expected one of my_runs/ID/checkpoints")
    if state["format"] != FORMAT:
        raise CheckpointError(f"{path}: has format {state['format']}, this version reads {FORMAT}")
    return state


def load_weights(model: nn.Module, path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Load the model's weights from a checkpoint, and return its whole state.

    Args:
        model: The model; it stays as it was if the checkpoint does not fit.
        path: The checkpoint.
        config: The config that `model` was built from.

    Raises:
        CheckpointError: If it is missing, damaged or does not fit; the message says what differs.
    """
    state = load_checkpoint(path)
    mine, theirs = model.state_dict(), state["model"]
    missing, extra = sorted(set(mine) - set(theirs)), sorted(set(theirs) - set(mine))
    shapes = [name for name in mine if name in theirs and mine[name].shape != theirs[name].shape]
    if missing or extra or shapes:
        found = [f"{name} is {list(theirs[name].shape)} there and {list(mine[name].shape)} here" for name in shapes[:2]]
        found += [f"{name} is only here" for name in missing[:2]] + [f"{name} is only there" for name in extra[:2]]
        differing = _differences(state.get("config", {}), config, ("data", "loss", "model"))
        hint = f"; it was saved with {', '.join(differing)}" if differing else ""
        run_config = path.absolute().parent.parent / "config.json"
        hint += f"; take the settings of its run: with {run_config}" if run_config.is_file() else ""
        raise CheckpointError(f"{path}: does not fit this model: {'; '.join(found)}{hint}")
    model.load_state_dict(theirs)
    return state


def _differences(saved: Mapping[str, Any], mine: Mapping[str, Any], parts: tuple[str, ...]) -> list[str]:
    return [
        f"{part}.{key}={value!r}"
        for part in parts
        for key, value in saved.get(part, {}).items()
        if mine.get(part, {}).get(key) != value
    ]


def other_data(saved: Mapping[str, Any], mine: Mapping[str, Any]) -> list[str]:
    """Return the settings of a `saved` config that made its inputs or their split other than those of `mine`."""
    harmless = ("path", "augment", "batch_size", "drop_last", "num_workers", "pin_memory")
    found = [text for text in _differences(saved, mine, ("data",)) if text[5:].partition("=")[0] not in harmless]
    if saved.get("data", {}).get("split_seed") is None and saved.get("seed") != mine.get("seed"):
        found.append(f"seed={saved.get('seed')!r}")
    return found


class Checkpointer:
    """Saves the best and the newest states of a training.

    Args:
        folder: Where to; made when the first checkpoint is saved.
        config: The run's config, kept in every checkpoint.
        best: Whether to keep the best weights, as `best.pt`.
        last: Whether to keep the newest state, as `last.pt`.
        interval: Epochs between newest states.
        keep: How many newest states to keep; older ones as `epoch-N.pt`.
    """

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        *,
        best: bool = True,
        last: bool = True,
        interval: int = 1,
        keep: int = 1,
    ) -> None:
        for name, value in (("interval", interval), ("keep", keep)):
            if value < 1:
                raise CheckpointError(f"checkpoint.{name}: got {value}, expected at least 1")
        self.folder = folder
        self.config = config
        self.best = best
        self.last = last
        self.interval = interval
        self.keep = keep

    @property
    def best_path(self) -> Path:
        """Where the best weights are."""
        return self.folder / "best.pt"

    @property
    def last_path(self) -> Path:
        """Where the newest state is."""
        return self.folder / "last.pt"

    def save_best(self, model: nn.Module, epoch: int, metrics: Mapping[str, float]) -> None:
        """Keep the weights of `model` as the best so far, if best ones are kept."""
        if self.best:
            state = {"model": model.state_dict(), "epoch": epoch, "metrics": dict(metrics), "config": self.config}
            save_checkpoint(state, self.best_path)

    def restore_best(self, model: nn.Module) -> None:
        """Load the best weights kept so far into `model`; without any it stays as it is."""
        if self.best and self.best_path.exists():
            load_weights(model, self.best_path, self.config)

    def save_last(self, epoch: int, parts: Mapping[str, Any], *, final: bool = False) -> None:
        """Keep the newest state, every `interval` epochs and at the end.

        Args:
            epoch: Epochs completed.
            parts: By name, what has a `state_dict`, or plain values.
            final: Whether training ends here.
        """
        if not self.last or not (final or epoch % self.interval == 0):
            return
        state = {name: part.state_dict() if hasattr(part, "state_dict") else part for name, part in parts.items()}
        if self.keep == 1:
            save_checkpoint({**state, "epoch": epoch, "config": self.config}, self.last_path)
            return
        path = self.folder / f"epoch-{epoch:05d}.pt"
        save_checkpoint({**state, "epoch": epoch, "config": self.config}, path)
        _stand_for(path, self.last_path)
        for old in sorted(self.folder.glob("epoch-*.pt"))[: -self.keep]:
            old.unlink()


def _stand_for(path: Path, alias: Path) -> None:
    """Make `alias` the same file as `path`: a hard link, or a copy where the file system has none."""
    temporary = alias.with_name(f".{alias.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(path, temporary)
    except OSError:
        shutil.copyfile(path, temporary)
    temporary.replace(alias)
