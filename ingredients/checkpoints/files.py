"""Checkpoints on disk: whole or not at all, and loaded without running code; and weights to start a model from.

`model.weights` names a file of weights:

PATH.pt, PATH.pth      a checkpoint of the lab, or a state dict that `torch.save` wrote
PATH.safetensors       a file of safetensors (extra `safetensors`)
run:ID                 the best weights of another run of the same store
run:ID@NAME            its checkpoints/NAME.pt, such as run:17@last
artifact:NAME:VERSION  the weights in a version of an artifact, such as artifact:net:v7 or artifact:net:champion
artifact:.../FILE      one of its files, if it has several
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sacristan.configs.map import abbreviated
from sacristan.ingredients.config.construct import require
from sacristan.ingredients.config.scope import completed
from sacristan.ingredients.datasets.fitted import Preparation
from sacristan.ingredients.datasets.splitting import Split
from sacristan.ingredients.errors import CheckpointError
from sacristan.ingredients.models.modules import load_plain_state_dict, plain_names, plain_state_dict
from sacristan.observers.artifacts.store import ArtifactStore
from sacristan.observers.errors import ArtifactError, SealError
from sacristan.observers.file.sacred_form import plain
from sacristan.observers.record.files import make_folder, replacing
from sacristan.observers.record.sealed_zip import SealingStream, check_seal, read_note

FORMAT = 2
_OTHER_FILE = "copy it again from where it is whole, or give another file"
# Entries of a state that can be read from its file without torch.
_NOTED = ("run", "epoch", "step")

_ENTRY = "model.weights"
_ARTIFACT = "artifact:"
_SUFFIXES = (".pt", ".pth", ".safetensors")
# Entries of the weights in states of other trainings.
_INNER = ("state_dict", "model_state_dict", "model")


def save_checkpoint(state: Mapping[str, Any], path: Path, *, check: bool = False) -> None:
    """Write a state and its checksum, whole or not at all; with `check`, only if it can be loaded again."""
    try:
        make_folder(path.parent)
        with replacing(path, check=load_checkpoint if check else None) as stream:
            sealing = SealingStream(stream)
            torch.save({"format": FORMAT, **state}, sealing)  # type: ignore[arg-type]  # it has what torch calls
            note = {name: state[name] for name in _NOTED if isinstance(state.get(name), int | str)}
            sealing.seal(json.dumps(note).encode())
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {str(error).partition(': ')[2]}; the checkpoint before it stays") from error
    except (OSError, RuntimeError, pickle.PicklingError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: cannot be written: {_cause(error)}; the checkpoint before it stays") from error


def _cause(error: BaseException) -> BaseException:
    """Return the system error behind torch's error about an incomplete file."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__context__
    return cause or error


def read_file(path: Path, *, check: bool, mmap: bool = False, entry: str = "checkpoint.path") -> Any:
    """Return what `torch.save` wrote, on the CPU, without executing code; older formats do not support `mmap`."""
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

    With `check`, the whole file is verified; without it, tensors are read when they are used.
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
    """Return the fitted preparation in a state; None in those of earlier versions, and without a preparation."""
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
    """Load the weights of a model and its loss, unless they do not fit, and return the whole state.

    `legacy_defaults` gives the settings that an older state may lack.
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


def parse_run(source: str, entry: str = _ENTRY) -> tuple[str, str] | None:
    """Return id and name of `run:ID@NAME`; None for a path or an artifact. `run:ID` means `run:ID@best`."""
    if not isinstance(source, str):
        raise CheckpointError(f"{entry}: got {source!r}, expected PATH.pt, run:ID, run:ID@last or artifact:NAME:v3")
    if not source.startswith("run:"):
        return None
    match = re.fullmatch(r"run:([\w-]+)(?:@([\w-]+))?", source)
    if match is None:
        raise CheckpointError(f"{entry}: got {source!r}; write run:ID for a run's best weights, or run:ID@last")
    return match[1], match[2] or "best"


def find_weights(source: str, store: Path | None, entry: str = _ENTRY, run: Any = None) -> Path:
    """Return the file that a setting names: a path, `run:ID@NAME` or `artifact:NAME:VERSION`.

    `run` notes that it uses the version of the artifact; without it, the version is looked up in `store`.
    """
    named = parse_run(source, entry)
    if source.startswith(_ARTIFACT):
        return _artifact_file(source, store, entry, run)
    if named is None:
        return Path(source).expanduser()
    run, name = named
    if store is None:
        raise CheckpointError(
            f"{entry}: got {source!r}, but no folder of runs is known here; give the path of the file"
        )
    if not (store / run).is_dir():
        raise CheckpointError(f"{entry}: got {source!r}, but {store} has no run {run}; sacristan ls shows those it has")
    path = store / run / "checkpoints" / f"{name}.pt"
    if not path.is_file():
        kept = sorted(other.stem for other in path.parent.glob("*.pt"))
        hint = f"it has {', '.join(f'run:{run}@{other}' for other in kept)}" if kept else "it has no checkpoints"
        raise CheckpointError(f"{entry}: got {source!r}, but there is no {path}; {hint}")
    return path


def _artifact_file(source: str, store: Path | None, entry: str, run: Any) -> Path:
    """Return the verified content of the file of weights in a version of an artifact."""
    reference, _, name = source.removeprefix(_ARTIFACT).partition("/")
    try:
        if run is None and store is None:
            raise ArtifactError("no folder of runs is known here; give the path of the file")
        version = ArtifactStore(store or "").resolve(reference) if run is None else run.use_artifact(reference)
        names = [file.path for file in version.files]
        weights = [name] if name else names if len(names) == 1 else [each for each in names if each.endswith(_SUFFIXES)]
        if len(weights) != 1:
            raise ArtifactError(f"{version} has {abbreviated(names)}; write which: {_ARTIFACT}{reference}/FILE")
        version.open(weights[0]).close()
    except ArtifactError as error:
        raise CheckpointError(f"{entry}: got {source!r}: {error}") from error
    return version.stored_path(weights[0])


def read_weights(path: Path) -> dict[str, Any]:
    """Return a model's state dict on the CPU, from a checkpoint, `torch.save` or, by the suffix, safetensors."""
    if path.suffix == ".safetensors" or (not path.suffix and _looks_like_safetensors(path)):
        content = _read_safetensors(path)
    else:
        content = read_file(path, check=_is_sealed(path), entry=_ENTRY)
    weights = next((state for state in _candidates(content) if _is_state_dict(state)), None)
    if weights is None:
        keys = ", ".join(map(str, list(content)[:6])) if isinstance(content, Mapping) else type(content).__name__
        raise CheckpointError(
            f"{path}: holds no state dict of a model, neither itself nor under {', '.join(_INNER)}; it holds: "
            f"{keys or 'nothing'}"
        )
    return dict(weights)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    safetensors = require("safetensors.torch", "safetensors", f"{_ENTRY}={path}")
    if not path.is_file():
        raise CheckpointError(f"{_ENTRY}: there is no file {path}; check the path")
    try:
        return safetensors.load_file(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); try again when it can") from error
    except Exception as error:  # SafetensorError, and what its header's JSON and UTF-8 raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{path}: is damaged, or no file of safetensors: {reason[:200]}") from error


def _looks_like_safetensors(path: Path) -> bool:
    """Tell the format of a content of the store of artifacts, whose name has no suffix."""
    with contextlib.suppress(OSError), path.open("rb") as stream:
        return stream.read(9)[8:] == b"{"  # after the length of the header
    return False


def _is_sealed(path: Path) -> bool:
    """Return whether a file has the lab's checksum, which reveals damage."""
    try:
        read_note(path)
    except (SealError, OSError):
        return False
    return True


def _candidates(content: Any) -> list[Any]:
    return [content, *(content.get(name) for name in _INNER)] if isinstance(content, Mapping) else []


def _is_state_dict(state: Any) -> bool:
    return (
        isinstance(state, Mapping)
        and any(isinstance(value, Tensor) for value in state.values())
        and all(isinstance(name, str) for name in state)
        and all(isinstance(value, Tensor) or name.endswith("_extra_state") for name, value in state.items())
    )
