"""Export of a model to ONNX or torch.export's format: made in evaluation mode, compared with the model, then written.

Both formats take inputs (batch, *shape) called `inputs`, with any number of samples, and return `outputs`. Metadata are
JSON in the entry `sacristan`: of ONNX a property of the model, of `.pt2` the extra file `sacristan.json`.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import itertools
import json
import logging
import re
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from sacristan.ingredients.checkpoints.files import find_weights, load_checkpoint, preparation_of, read_weights
from sacristan.ingredients.config.construct import require
from sacristan.ingredients.datasets.batches import Data
from sacristan.ingredients.datasets.fitted import Preparation
from sacristan.ingredients.datasets.transforms import shape_after
from sacristan.ingredients.errors import CheckpointError, DataError, ModelError
from sacristan.ingredients.losses import reading
from sacristan.ingredients.models.building import build_model, load_weights_into
from sacristan.observers.file.recorded_values import read_back
from sacristan.observers.record.files import replacing

# The endings of files by format.
FORMATS = {"onnx": ".onnx", "pt2": ".pt2"}
METADATA = "sacristan"
# A message of protobuf holds 2 GiB.
_MAX_ONNX_BYTES = 2**31 - 2**20


class PreparedModel(nn.Module):
    """Normalises inputs, calls a model, and returns values in the targets' own unit; scores of classes stay scores.

    Images stored as bytes must be scaled to 0 to 1, categories and words must be numbers already. Values that float32
    would round, such as Unix times, must be float64, see `Preparation`.

    Shapes: inputs (B, *by.input_shape), outputs as the model's.
    """

    mean: Tensor | None
    std: Tensor | None
    target_mean: Tensor | None
    target_std: Tensor | None

    def __init__(self, model: nn.Module, by: Preparation) -> None:
        super().__init__()
        self.model = model
        self.is_filled = by.table is not None and by.table.missing == "fill"
        for name in ("mean", "std", "target_mean", "target_std"):
            values = getattr(by, name)
            self.register_buffer(name, None if values is None else torch.from_numpy(np.array(values)))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.mean is not None and self.std is not None:
            inputs = _float32((inputs - self.mean) / self.std)
        if self.is_filled:
            inputs = torch.where(torch.isnan(inputs), torch.zeros_like(inputs), inputs)
        return self.own_unit(self.model(inputs))

    def own_unit(self, outputs: Tensor) -> Tensor:
        """Return outputs (B, D) in the targets' own unit; class scores, which have none, unchanged."""
        if self.target_mean is None or self.target_std is None:
            return outputs
        return outputs * self.target_std + self.target_mean

    def undo(self, inputs: Tensor) -> Tensor:
        """Undo the normalisation of inputs (B, *by.input_shape); unchanged if the data were not normalised."""
        if self.mean is None or self.std is None:
            return inputs
        return inputs * self.std + self.mean


def _float32(values: Tensor) -> Tensor:
    return values.float() if values.dtype == torch.float64 else values


def _make_program(model: nn.Module, inputs: Tensor, dims: Mapping[int, str]) -> ExportedProgram:
    """Return a model as a graph of operations for any batch; `inputs` needs two samples, or torch fixes the size."""
    try:
        with _quiet(), torch.no_grad():
            shapes = {axis: Dim(name, min=1) for axis, name in dims.items()}
            program = torch.export.export(model, (inputs,), dynamic_shapes=(shapes,))
    except Exception as error:  # torch raises errors of many types, most of them private
        raise ModelError(f"export: the model is no graph of operations: {_reason(error)}") from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine
    return program


def _reason(error: BaseException) -> str:
    """Return in one line why a model cannot be exported, and the line of its source."""
    fixed = re.search(r"specialized it to be a constant \((\d+)\)", str(error))
    if fixed is not None:
        return (
            f"it computes only batches of {fixed[1]} samples; take the size of a batch from inputs.shape[0], or "
            "write -1"
        )
    lines = str(error).strip().splitlines()
    text = lines[0][:300] if lines else type(error).__name__
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.name == "forward" and "torch" not in Path(frame.filename).parts
    ]
    where = f"{Path(own[-1].filename).name}:{own[-1].lineno}: {own[-1].line!r}: " if own else ""
    hint = ""
    if "data-dependent" in text:
        hint = "; a decision that depends on values of the inputs is torch.where or torch.cond in a graph"
    return f"{where}{text}{hint}"


def _make_onnx(program: ExportedProgram, metadata: Mapping[str, Any], dims: Mapping[int, str]) -> bytes:
    """Return a graph as the content of an ONNX file, with the metadata as JSON."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        require(name, "onnx", "export.format=onnx")
    size = sum(value.nbytes for value in program.state_dict.values())
    if size > _MAX_ONNX_BYTES:
        raise ModelError(
            f"export.format: the model has {size / 2**30:.1f} GiB of weights, but one ONNX file holds 2 GiB; use "
            "export.format=pt2"
        )
    try:
        with _quiet():
            made: Any = torch.onnx.export(
                program,
                (),
                dynamo=True,
                input_names=["inputs"],
                output_names=["outputs"],
                dynamic_shapes=(dict(dims),),
                verbose=False,
            )
    except Exception as error:
        raise ModelError(f"export.format=onnx: {_onnx_reason(error)}; use export.format=pt2") from error
    for node in made.model.graph.all_nodes():
        node.metadata_props.clear()  # where in torch they come from
    made.model.metadata_props[METADATA] = json.dumps(metadata)
    return made.model_proto.SerializeToString()


def _onnx_reason(error: BaseException) -> str:
    texts = []
    cause: BaseException | None = error
    while cause is not None:
        texts.append(str(cause))
        cause = cause.__cause__ or cause.__context__
    for text in reversed(texts):
        operation = re.search(r"OpOverload\(op='([^']+)'", text)
        if operation is not None:
            return f"ONNX has no operation for {operation[1]}"
    return f"the model cannot be converted: {(texts[-1].strip().splitlines() or [type(error).__name__])[0][:300]}"


def _pt2_bytes(program: ExportedProgram, metadata: Mapping[str, Any]) -> bytes:
    """Return a graph as the content of a file for `torch.export.load`, with metadata in `sacristan.json`."""
    stream = io.BytesIO()
    with _quiet():
        torch.export.save(program, stream, extra_files={f"{METADATA}.json": json.dumps(metadata)})
    return stream.getvalue()


def _run_onnx(content: bytes) -> Callable[[Tensor], Tensor]:
    """Return a function that runs an ONNX file on the CPU, with as many threads as torch: (B, ...) to outputs."""
    runtime = require("onnxruntime", "onnx", "export.format=onnx")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return lambda inputs: torch.from_numpy(session.run(None, {"inputs": inputs.contiguous().numpy()})[0])


def _run_pt2(content: bytes) -> Callable[[Tensor], Tensor]:
    """Return a function that runs the content of a `torch.export` file on CPU tensors: (B, ...) to outputs."""
    with _quiet():
        return torch.export.load(io.BytesIO(content)).module()


def read_metadata(path: Path) -> dict[str, Any]:
    """Return the metadata in an exported file: its inputs, outputs, classes, and the origin of its weights."""
    if path.suffix == FORMATS["onnx"]:
        runtime = require("onnxruntime", "onnx", "the metadata of an ONNX file")
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return json.loads(session.get_modelmeta().custom_metadata_map[METADATA])
    extra = {f"{METADATA}.json": ""}
    with _quiet():
        torch.export.load(path, extra_files=extra)
    return json.loads(extra[f"{METADATA}.json"])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the output and the warnings of torch about its internals during an export."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            with contextlib.redirect_stderr(io.StringIO()):
                yield
    finally:
        logging.disable(disabled)


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
) -> OutputDifference:
    """Write a model in evaluation mode to a file, and return the difference of its outputs from the model's.

    The content is compared with the model on the first batches of `data.test` before it is written; an existing file
    stays until then. All is done on the CPU in float32. `preparation` makes the file take raw values, see
    `PreparedModel`. `tolerance` is the largest difference accepted, relative to the model's largest output.
    """
    plain = copy.deepcopy(model).cpu().float().eval()
    prepared = PreparedModel(plain, _known(data.preparation)) if preparation else None
    pairs = list(itertools.islice(_pairs(plain, prepared, data), num_batches))
    if not pairs:
        raise DataError("export: there is no sample to compare the file on; give data with a test part")
    whole = (prepared or plain).eval()
    sample = pairs[0][0]
    dims = _varying(data)
    program = _make_program(whole, sample if len(sample) > 1 else torch.cat([sample, sample]), dims)
    content = _make_onnx(program, metadata, dims) if format == "onnx" else _pt2_bytes(program, metadata)
    offset = None if prepared is None else prepared.target_mean
    with torch.no_grad():
        difference = compare(pairs, _run_onnx(content) if format == "onnx" else _run_pt2(content), offset)
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


def _pairs(model: nn.Module, prepared: PreparedModel | None, data: Data) -> Iterator[tuple[Tensor, Tensor]]:
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
    shape = [varying.get(axis, size) for axis, size in enumerate((0, *data.input_shape))]
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
class OutputDifference:
    """The difference of two sets of outputs: `absolute` is the largest of two values, infinite where only one is NaN.

    `relative` is the share of the model's largest value, apart from the mean of the targets.
    """

    absolute: float
    relative: float
    num_samples: int


def compare(
    pairs: Iterable[tuple[Tensor, Tensor]], exported: Callable[[Tensor], Tensor], offset: Tensor | None = None
) -> OutputDifference:
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
    return OutputDifference(largest, largest / scale if scale else largest, num_samples)


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


def load_network(
    name: str,
    input_shape: Sequence[int],
    num_outputs: int,
    weights: str | None,
    store: str | Path,
    seed: int,
    options: Mapping[str, Any],
) -> nn.Module:
    """Return a network of the lab, with weights or newly initialised."""
    if not _is_size(num_outputs):
        raise ModelError(f"num_outputs: got {num_outputs!r}, expected a whole number of at least 1")
    if not isinstance(input_shape, Sequence) or not input_shape or not all(map(_is_size, input_shape)):
        raise ModelError(f"input_shape: got {input_shape!r}, expected sizes of at least 1, such as (1, 8, 8)")
    model = build_model(name, options, "default", tuple(input_shape), num_outputs, seed)
    if weights is not None:
        path = find_weights(weights, Path(store), "weights")
        load_weights_into(model, read_weights(path), strict=True, source=str(path))
    return model


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def load_trained(checkpoint: str, store: str | Path, *, prepared: bool = False) -> nn.Module:
    """Return a checkpoint's model in evaluation mode; `prepared` wraps it in the preparation, see `PreparedModel`."""
    path = find_weights(checkpoint, Path(store), "checkpoint")
    state = load_checkpoint(path)
    by, config = preparation_of(state, path), read_back(state.get("config", {}))
    if by is None or by.task == "custom" or not {"data", "loss", "model"} <= config.keys():
        raise CheckpointError(
            f"{path}: does not tell how its model is built from inputs and targets; build it as its experiment does, "
            "and load the weights there"
        )
    model = _build(by, config)
    load_weights_into(model, state["model"], strict=True, source=str(path))
    return (PreparedModel(model, by) if prepared else model).eval()


def _build(by: Preparation, config: Mapping[str, Any]) -> nn.Module:
    loss, model = config["loss"], config["model"]
    name = next((part.get("name") for part in loss.get("parts", {}).values()), loss["name"])
    transforms = config["data"].get("transforms")
    shape = shape_after(transforms, by.input_shape) if transforms else by.input_shape
    _, num_outputs = reading(name, by)
    dtype = getattr(torch, by.dtype)
    return build_model(model["name"], model["options"], "default", shape, num_outputs, 0, dtype, by)
