"""Export of a model to a file: made in evaluation mode, compared with the model, and only then written."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sacristan.ingredients.datasets.batches import Data
from sacristan.ingredients.datasets.fitted import Preparation
from sacristan.ingredients.deployment.formats import FORMATS, make_onnx, make_program, pt2_bytes, run_onnx, run_pt2
from sacristan.ingredients.deployment.prepared import Prepared
from sacristan.ingredients.errors import DataError, ModelError
from sacristan.observers.record.files import replacing

__all__ = ["Difference", "check_path", "compare", "describe", "export"]


def check_path(path: Path, format: str, *, overwrite: bool) -> None:
    """Check that a file of a format, `onnx` or `pt2`, can be written."""
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
    """Write a model in evaluation mode to a file, and return the difference of its outputs from the model's.

    The content is compared with the model on the first batches of `data.test` before it is written; an existing file
    stays until then. All is done on the CPU in float32. `preparation` makes the file take raw values, see `Prepared`.
    `tolerance` is the largest difference accepted, relative to the model's largest output.
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
    offset = None if prepared is None else prepared.target_mean
    with torch.no_grad():
        difference = compare(pairs, run_onnx(content) if format == "onnx" else run_pt2(content), offset)
    if not difference.relative <= tolerance:
        _check_repeatable(whole, pairs, tolerance)
        raise ModelError(
            f"export: the outputs of the file differ from the model's by {difference.absolute:.3g}, "
            f"{difference.relative:.3g} of the largest, more than export.tolerance={tolerance:g}; it is not kept"
        )
    try:
        with replacing(path) as stream:
            stream.write(content)
    except OSError as error:
        raise ModelError(f"export.path: {path} cannot be written ({error.strerror}); give another one") from error
    return difference


def _check_repeatable(model: nn.Module, pairs: Iterable[tuple[Tensor, Tensor]], tolerance: float) -> None:
    """Reject a model whose outputs for the same inputs differ by more than `tolerance` of the largest."""
    with torch.no_grad():
        difference = compare([(inputs, model(inputs)) for inputs, _ in pairs], model)
    if not difference.relative <= tolerance:
        raise ModelError(
            f"export: the model differs from itself by {difference.relative:.3g} of its largest output when it "
            "computes the same inputs twice in evaluation mode; remove what is random or counts calls, such as "
            "functional.dropout without training=self.training"
        )


def _varying(data: Data) -> dict[int, str]:
    """Return the dimensions of inputs that vary, by name: the batch, and the length of texts."""
    has_words = data.preparation is not None and data.preparation.vocabulary is not None
    return {0: "batch", 1: "length"} if has_words else {0: "batch"}


def _known(preparation: Preparation | None) -> Preparation:
    if preparation is None:
        raise DataError(
            "export.preparation: the preparation of the data is not known here; use export.preparation=False"
        )
    return preparation


def _pairs(model: nn.Module, prepared: Prepared | None, data: Data) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and outputs as those of the file."""
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
    """Return the metadata of a file about its inputs, its outputs and the data preparation, as for JSON."""
    dtype, varying = str(data.input_dtype).removeprefix("torch."), _varying(data)
    is_exact = {"inputs": False, "targets": False}
    if preparation and data.preparation is not None:
        is_exact = {"inputs": data.preparation.exact_inputs, "targets": data.preparation.exact_targets}
    shape = [varying.get(place, size) for place, size in enumerate((0, *data.input_shape))]
    metadata: dict[str, Any] = {
        "task": data.task,
        "classes": list(data.classes),
        "outputs_are": kind,
        "inputs": [{"name": "inputs", "shape": shape, "dtype": "float64" if is_exact["inputs"] else dtype}],
        "outputs": [
            {"name": "outputs", "num_outputs": num_outputs, "dtype": "float64" if is_exact["targets"] else "float32"}
        ],
        "preparation": {"included": preparation},
    }
    if data.preparation is not None:
        metadata["preparation"] |= _described(data.preparation)
    return metadata


def _described(by: Preparation) -> dict[str, Any]:
    arrays = {name: getattr(by, name) for name in ("mean", "std", "target_mean", "target_std")}
    metadata: dict[str, Any] = {name: None if value is None else value.tolist() for name, value in arrays.items()}
    metadata |= {"features": by.features, "target_names": by.target_names, "image_size": by.image_size}
    metadata["table"] = None if by.table is None else by.table.state_dict()
    metadata["vocabulary"] = None if by.vocabulary is None else dataclasses.asdict(by.vocabulary)
    return metadata


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference of two sets of outputs.

    Attributes:
        absolute: The largest difference of two values; infinite where one is NaN and the other is not.
        relative: The same as a share of the largest value of the model, apart from the mean of the targets.
        num_samples: Number of samples compared.
    """

    absolute: float
    relative: float
    num_samples: int


def compare(
    pairs: Iterable[tuple[Tensor, Tensor]], exported: Callable[[Tensor], Tensor], offset: Tensor | None = None
) -> Difference:
    """Compare the outputs of an exported model with those of the model itself.

    One sample is also computed alone, as another batch size.

    Args:
        pairs: Inputs (B, ...) and the outputs of the model for them.
        exported: Returns the outputs of the exported model.
        offset: Mean of the targets (D,), which says nothing of the size of a difference.
    """
    largest = scale = 0.0
    num_samples = 0
    for inputs, expected in pairs:
        parts = [(inputs, expected)] if num_samples else [(inputs, expected), (inputs[:1], expected[:1])]
        for part, outputs in parts:
            largest = max(largest, _largest_difference(exported(part), outputs))
        values = expected if offset is None else expected - offset
        scale = max(scale, values.abs().nan_to_num(posinf=0.0).max().item())
        num_samples += len(inputs)
    return Difference(largest, largest / scale if scale else largest, num_samples)


def _largest_difference(outputs: Tensor, expected: Tensor) -> float:
    if outputs.shape != expected.shape:
        return float("inf")
    outputs, expected = outputs.double(), expected.double()
    same = (outputs == expected) | (outputs.isnan() & expected.isnan())
    return (
        torch.where(same, 0.0, (outputs - expected).abs())
        .nan_to_num(nan=float("inf"), posinf=float("inf"))
        .max()
        .item()
    )
