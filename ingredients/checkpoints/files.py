"""Checkpoints on disk: whole or not at all, and loaded without running code."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sacristan.ingredients.config.scope import completed
from sacristan.ingredients.datasets.fitted import Preparation
from sacristan.ingredients.datasets.splitting import Split
from sacristan.ingredients.errors import CheckpointError
from sacristan.ingredients.models.compiled import load_plain_state_dict, plain_names, plain_state_dict
from sacristan.observers.errors import SealError
from sacristan.observers.file.sacred_form import plain
from sacristan.observers.record.files import make_folder, replacing
from sacristan.observers.record.sealed_zip import SealingStream, check_seal

__all__ = [
    "check_weights",
    "complete_config",
    "load_checkpoint",
    "load_weights",
    "other_data",
    "preparation_of",
    "read_file",
    "save_checkpoint",
    "split_of",
]

FORMAT = 2
_OTHER_FILE = "copy it again from where it is whole, or give another file"
# Entries of a state that can be read from its file without torch.
_NOTED = ("run", "epoch", "step")


def save_checkpoint(state: Mapping[str, Any], path: Path) -> None:
    """Write a state and its checksum to a file, which is replaced as a whole or not at all."""
    try:
        make_folder(path.parent)
        with replacing(path) as stream:
            sealing = SealingStream(stream)
            torch.save({"format": FORMAT, **state}, sealing)  # type: ignore[arg-type]  # it has what torch calls
            note = {name: state[name] for name in _NOTED if isinstance(state.get(name), int | str)}
            sealing.seal(json.dumps(note).encode())
    except (OSError, RuntimeError, pickle.PicklingError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: cannot be written: {_cause(error)}; the checkpoint before it stays") from error


def _cause(error: BaseException) -> BaseException:
    """Return the system error behind torch's error about an incomplete file."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__context__
    return cause or error


def read_file(path: Path, *, check: bool, mmap: bool = False, entry: str = "checkpoint.path") -> Any:
    """Return the content of a file that `torch.save` wrote, its tensors on the CPU, without executing code.

    `mmap` reads tensors when they are used; older formats of torch do not support it.
    """
    if not path.is_file():
        near = ", ".join(sorted(map(str, path.parent.glob("*.pt"))))
        raise CheckpointError(f"{entry}: there is no file {path}; {f'there are: {near}' if near else 'check the path'}")
    try:
        # torch itself compares no checksums, and would load weights with flipped bits.
        if check:
            check_seal(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); try again when it can") from error
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path}: is damaged, or holds more than tensors and plain values; it is not loaded, as that could run code"
        ) from error
    except SealError as error:
        raise CheckpointError(f"{path}: is damaged, or no checkpoint: {error}; {_OTHER_FILE}") from error
    except Exception as error:
        # Damage shows as any exception of the unpickler, with a message that helps nobody.
        raise CheckpointError(f"{path}: is damaged, cut short, or not written by torch.save; {_OTHER_FILE}") from error


def load_checkpoint(path: Path, *, check: bool = True) -> dict[str, Any]:
    """Return the state in a checkpoint, its tensors on the CPU, without executing code.

    With `check`, the whole file is read and verified. Without it, tensors are read when they are used, which is quick
    for a few small entries of a large file.
    """
    state = read_file(path, check=check, mmap=not check)
    if not isinstance(state, dict) or "format" not in state or not {"model", "streams"} & state.keys():
        raise CheckpointError(f"{path}: is no checkpoint of this lab; expected one of my_runs/ID/checkpoints")
    if state["format"] != FORMAT:
        use = "use the version of the lab that saved it"
        raise CheckpointError(f"{path}: has format {state['format']}, this version reads {FORMAT}; {use}")
    return state


def complete_config(state: dict[str, Any], mine: Mapping[str, Any], legacy_defaults: Mapping[str, Any]) -> None:
    """Add to the config of an older state, if it has one, the settings that it lacks; see `completed`."""
    if state.get("config"):
        state["config"] = completed(state["config"], mine, legacy_defaults)


def preparation_of(state: Mapping[str, Any], path: Path) -> Preparation | None:
    """Return the fitted preparation of the data in a state: means, classes, categories, the split.

    None for states of earlier versions, and for data without a preparation.
    """
    kept = state.get("preparation")
    try:
        return None if kept is None else Preparation.from_state(kept)
    except (TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path}: its preparation of the data cannot be read ({error})") from error


def split_of(state: Mapping[str, Any], path: Path) -> Split | None:
    """Return the data split of a state, from its preparation or, in earlier versions, its config; None if unknown."""
    preparation = preparation_of(state, path)
    if preparation is not None:
        return preparation.split
    kept = state.get("split")
    if kept is not None:
        try:
            return Split(**kept)
        except TypeError as error:
            raise CheckpointError(f"{path}: its split of the data cannot be read ({error})") from error
    config = state.get("config", {})
    try:
        return dataclasses.replace(Split.of(config["data"], config["seed"]), data=state.get("data"))
    except (KeyError, TypeError):
        return None


def load_weights(
    model: nn.Module,
    path: Path,
    config: Mapping[str, Any],
    loss: nn.Module | None = None,
    *,
    legacy_defaults: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Load the weights of the model and of its loss from a checkpoint, and return its whole state.

    The model stays as it was if the checkpoint does not fit. `legacy_defaults` gives the settings that an older state
    may lack.
    """
    state = load_checkpoint(path)
    complete_config(state, config, legacy_defaults or {})
    if "model" not in state:
        raise CheckpointError(f"{path}: holds no part named `model`; load its parts in your own code")
    check_weights(model, state, path, config)
    if loss is not None and state.get("loss") is not None:
        try:
            load_plain_state_dict(loss, state["loss"])
        except RuntimeError as error:
            raise CheckpointError(f"{path}: its loss does not fit this one ({error})") from error
    load_plain_state_dict(model, state["model"])
    return state


def check_weights(model: nn.Module, state: Mapping[str, Any], path: Path, config: Mapping[str, Any]) -> None:
    """Check that the weights of a state fit a model, by names and shapes; the error names the settings that differ."""
    mine, theirs = plain_state_dict(model), plain_names(state["model"])
    missing, extra = sorted(mine.keys() - theirs.keys()), sorted(theirs.keys() - mine.keys())
    shapes = [name for name, value in mine.items() if theirs.get(name, value).shape != value.shape]
    faults = [f"{name} is {list(theirs[name].shape)} there and {list(mine[name].shape)} here" for name in shapes[:2]]
    faults += [f"{name} is only here" for name in missing[:2]] + [f"{name} is only there" for name in extra[:2]]
    if faults:
        differing = _differences(state.get("config", {}), config, ("data", "loss", "model"))
        hint = f"; it was saved with {', '.join(differing)}" if differing else ""
        run_config = path.absolute().parent.parent / "config.json"
        hint += f"; take the settings of its run: with {run_config}" if run_config.is_file() else ""
        raise CheckpointError(f"{path}: does not fit this model: {'; '.join(faults)}{hint}")


def _differences(saved: Mapping[str, Any], mine: Mapping[str, Any], parts: tuple[str, ...]) -> list[str]:
    saved, mine = plain(saved), plain(mine)
    return [
        f"{part}.{key}={value!r}"
        for part in parts
        for key, value in saved.get(part, {}).items()
        if mine.get(part, {}).get(key) != value
    ]


def other_data(saved: Mapping[str, Any], mine: Mapping[str, Any]) -> list[str]:
    """Return the data settings of `saved` that give `mine` other inputs or another split, such as `data.limit=300`."""
    harmless = ("path", "augment", "batch_size", "drop_last", "num_workers", "pin_memory", "part")
    different = [text for text in _differences(saved, mine, ("data",)) if text[5:].partition("=")[0] not in harmless]
    if saved.get("data", {}).get("split_seed") is None and saved.get("seed") != mine.get("seed"):
        different.append(f"seed={saved.get('seed')!r}")
    return different
