"""Exporting a model to a file: made in evaluation mode, compared with the model, and only then put in its place."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ingredients.datasets.batches import Data
from ingredients.datasets.fitted import Preparation
from ingredients.deployment.comparison import Difference, compare
from ingredients.deployment.formats import FORMATS, make_onnx, make_program, pt2_bytes, run_onnx, run_pt2
from ingredients.deployment.prepared import Prepared
from ingredients.errors import DataError, ModelError
from observers.record.atomic_file import replacing

__all__ = ["check_path", "describe", "export"]


def check_path(path: Path, format: str, *, overwrite: bool) -> None:
    """Refuse a file that does not end as its format does, is there already, or has no folder to lie in.

    Raises:
        ModelError: If it is so.
    """
    if path.suffix != FORMATS[format]:
        raise ModelError(
            f"export.path: got {path}, expected a name that ends in {FORMATS[format]} for export.format={format}"
        )
    if not path.parent.is_dir():
        raise ModelError(f"export.path: got {path}, but there is no folder {path.parent}; make it first")
    if path.exists() and not overwrite:
        raise ModelError(f"export.path: {path} already exists; give another name, or export.overwrite=True")


def export(
    model: nn.Module,
    data: Data,
    path: Path,
    metadata: Mapping[str, Any],
    *,
    format: str,
    preparation: bool = False,
    tolerance: float = 1e-4,
    num_batches: int = 8,
) -> Difference:
    """Write a model to a file, in evaluation mode, and return how far the file's outputs are from the model's.

    Its content is compared with the model on the first batches of `data.test` before it is written; a file that was
    there stays until then. All is done on the CPU in float32.

    Args:
        model: The model; it stays as it is.
        data: The data that it is compared on.
        path: Where to.
        metadata: What the file tells of itself, see `describe`.
        format: `onnx` or `pt2`.
        preparation: Whether the file takes values that are not normalised; see `Prepared`.
        tolerance: Largest difference accepted, as a share of the model's largest output.
        num_batches: How many batches to compare.

    Raises:
        ModelError: If the model cannot be exported, the file's outputs are too far from the model's, or it cannot be
            written.
        DataError: If there is nothing to compare on, or the preparation is not known.
    """
    plain = copy.deepcopy(model).cpu().float().eval()
    prepared = Prepared(plain, _known(data.preparation)) if preparation else None
    pairs = list(itertools.islice(_pairs(plain, prepared, data), num_batches))
    if not pairs:
        raise DataError("export: there is no sample to compare the file on; give data with a test part")
    whole = (prepared or plain).eval()
    sample = pairs[0][0]
    dims = _varying(data)
    program = make_program(whole, sample if len(sample) > 1 else torch.cat([sample, sample]), dims)
    content = make_onnx(program, metadata, dims) if format == "onnx" else pt2_bytes(program, metadata)
    with torch.no_grad():
        found = compare(pairs, run_onnx(content) if format == "onnx" else run_pt2(content))
    if not found.relative <= tolerance:
        _check_repeatable(whole, pairs, tolerance)
        raise ModelError(
            f"export: the outputs of the file differ from the model's by {found.absolute:.3g}, {found.relative:.3g} of "
            f"the largest, more than export.tolerance={tolerance:g}; it is not kept"
        )
    try:
        with replacing(path) as stream:
            stream.write(content)
    except OSError as error:
        raise ModelError(f"export.path: {path} cannot be written ({error.strerror}); give another one") from error
    return found


def _check_repeatable(model: nn.Module, pairs: Iterable[tuple[Tensor, Tensor]], tolerance: float) -> None:
    """Check that a model computes the same of the same inputs twice.

    Raises:
        ModelError: If the outputs differ by more than `tolerance` of the largest.
    """
    with torch.no_grad():
        found = compare([(inputs, model(inputs)) for inputs, _ in pairs], model)
    if not found.relative <= tolerance:
        raise ModelError(
            f"export: the model differs from itself by {found.relative:.3g} of its largest output when it computes the "
            "same inputs twice in evaluation mode; remove what is random or counts calls, such as functional.dropout "
            "without training=self.training"
        )


def _varying(data: Data) -> dict[int, str]:
    """Return the dimensions of inputs that vary, by name: the batch, and the length of texts."""
    has_words = data.preparation is not None and data.preparation.vocabulary is not None
    return {0: "batch", 1: "length"} if has_words else {0: "batch"}


def _known(preparation: Preparation | None) -> Preparation:
    if preparation is None:
        raise DataError(
            "export.preparation: what the data were prepared by is not known here; use export.preparation=False"
        )
    return preparation


def _pairs(model: nn.Module, prepared: Prepared | None, data: Data) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs as the file takes them, and the outputs that the model has for them."""
    if data.task == "custom":
        raise DataError("export: samples of any structure are not exported; expected data of inputs and targets")
    for inputs, _ in data.test.epoch():
        inputs = inputs.cpu()
        with torch.no_grad():
            outputs = model(inputs)
        if not isinstance(outputs, Tensor):
            raise ModelError(f"export: the model returns a {type(outputs).__name__}, expected a tensor")
        yield (inputs, outputs) if prepared is None else (prepared.undo(inputs), prepared.own_unit(outputs))


def describe(data: Data, kind: str, num_outputs: int, *, preparation: bool) -> dict[str, Any]:
    """Return what a file tells of its inputs, its outputs and the preparation of the data, as JSON holds it.

    Args:
        data: The data.
        kind: How outputs are read, `Loss.kind`.
        num_outputs: `Loss.num_outputs`.
        preparation: Whether the file prepares inputs itself.
    """
    dtype, varying = str(data.input_dtype).removeprefix("torch."), _varying(data)
    shape = [varying.get(place, size) for place, size in enumerate((0, *data.input_shape))]
    told: dict[str, Any] = {
        "task": data.task,
        "classes": list(data.classes),
        "outputs_are": kind,
        "inputs": [{"name": "inputs", "shape": shape, "dtype": dtype}],
        "outputs": [{"name": "outputs", "num_outputs": num_outputs, "dtype": "float32"}],
        "preparation": {"included": preparation},
    }
    if data.preparation is not None:
        told["preparation"] |= _described(data.preparation)
    return told


def _described(by: Preparation) -> dict[str, Any]:
    arrays = {name: getattr(by, name) for name in ("mean", "std", "target_mean", "target_std")}
    told: dict[str, Any] = {name: None if value is None else value.tolist() for name, value in arrays.items()}
    told |= {"features": by.features, "target_names": by.target_names, "image_size": by.image_size}
    told["table"] = None if by.table is None else by.table.state_dict()
    told["vocabulary"] = None if by.vocabulary is None else dataclasses.asdict(by.vocabulary)
    return told
