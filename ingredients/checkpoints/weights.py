"""Weights to start a model from: the file that `model.weights` names, and its content.

PATH.pt, PATH.pth      a checkpoint of the lab, or a state dict that `torch.save` wrote
PATH.safetensors       a file of safetensors (extra `safetensors`)
run:ID                 the best weights of another run of the same store
run:ID@NAME            its checkpoints/NAME.pt, such as run:17@last
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from sacristan.ingredients.checkpoints.files import read_file
from sacristan.ingredients.config.construct import require
from sacristan.ingredients.errors import CheckpointError
from sacristan.observers.errors import SealError
from sacristan.observers.record.sealed_zip import read_note

__all__ = ["find_weights", "parse_run", "read_weights"]

_ENTRY = "model.weights"
# Entries of the weights in states of other trainings.
_INNER = ("state_dict", "model_state_dict", "model")


def parse_run(source: str, entry: str = _ENTRY) -> tuple[str, str] | None:
    """Return id and name of `run:ID@NAME`; None for a path. `run:ID` means `run:ID@best`."""
    if not isinstance(source, str):
        raise CheckpointError(f"{entry}: got {source!r}, expected PATH.pt, run:ID or run:ID@last")
    if not source.startswith("run:"):
        return None
    match = re.fullmatch(r"run:([\w-]+)(?:@([\w-]+))?", source)
    if match is None:
        raise CheckpointError(f"{entry}: got {source!r}; write run:ID for a run's best weights, or run:ID@last")
    return match[1], match[2] or "best"


def find_weights(source: str, store: Path | None, entry: str = _ENTRY) -> Path:
    """Return the file of weights that a setting, a path or `run:ID@NAME`, refers to."""
    named = parse_run(source, entry)
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


def read_weights(path: Path) -> dict[str, Any]:
    """Return the state dict of a model, on the CPU, from a checkpoint or a `torch.save` or safetensors file.

    The suffix selects the format; no code is executed.
    """
    if path.suffix == ".safetensors":
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
