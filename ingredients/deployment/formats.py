"""The formats of exported models, ONNX and torch.export's: made from a model, and run to compare them with it.

Both take inputs (batch, *shape) called `inputs`, with any number of samples, and return `outputs`. Metadata are JSON in
the entry `sacristan`: of ONNX a property of the model, of `.pt2` the extra file `sacristan.json`.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from sacristan.ingredients.config.construct import require
from sacristan.ingredients.errors import ModelError

__all__ = ["FORMATS", "METADATA", "make_onnx", "make_program", "pt2_bytes", "read_metadata", "run_onnx", "run_pt2"]

# The endings of files by format.
FORMATS = {"onnx": ".onnx", "pt2": ".pt2"}
METADATA = "sacristan"
# A message of protobuf holds 2 GiB.
_MAX_ONNX_BYTES = 2**31 - 2**20


def make_program(model: nn.Module, inputs: Tensor, dims: Mapping[int, str]) -> ExportedProgram:
    """Return a model in evaluation mode as a graph of operations, for batches of any size.

    `inputs` must have at least two samples: with one, torch would fix the batch size. `dims` are names by varying
    dimension, 0 (the batch) among them.
    """
    try:
        with _quiet(), torch.no_grad():
            shapes = {place: Dim(name, min=1) for place, name in dims.items()}
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


def make_onnx(program: ExportedProgram, metadata: Mapping[str, Any], dims: Mapping[int, str]) -> bytes:
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
        found = re.search(r"OpOverload\(op='([^']+)'", text)
        if found is not None:
            return f"ONNX has no operation for {found[1]}"
    return f"the model cannot be converted: {(texts[-1].strip().splitlines() or [type(error).__name__])[0][:300]}"


def pt2_bytes(program: ExportedProgram, metadata: Mapping[str, Any]) -> bytes:
    """Return a graph as the content of a file for `torch.export.load`, with metadata in `sacristan.json`."""
    stream = io.BytesIO()
    with _quiet():
        torch.export.save(program, stream, extra_files={f"{METADATA}.json": json.dumps(metadata)})
    return stream.getvalue()


def run_onnx(content: bytes) -> Callable[[Tensor], Tensor]:
    """Return a function that runs an ONNX file on the CPU, with as many threads as torch: (B, ...) to outputs."""
    runtime = require("onnxruntime", "onnx", "export.format=onnx")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return lambda inputs: torch.from_numpy(session.run(None, {"inputs": inputs.contiguous().numpy()})[0])


def run_pt2(content: bytes) -> Callable[[Tensor], Tensor]:
    """Return a function that runs the content of a `torch.export` file on CPU tensors: (B, ...) to outputs."""
    with _quiet():
        return torch.export.load(io.BytesIO(content)).module()


def read_metadata(path: Path) -> dict[str, Any]:
    """Return the metadata in an exported file: its inputs, outputs, classes, and the origin of its weights.

    Example:
        read_metadata(Path("model.onnx"))["classes"]
    """
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
