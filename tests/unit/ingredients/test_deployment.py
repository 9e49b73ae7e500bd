from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from torch import nn

from sacristan.ingredients import DataError, ModelError, ViT
from sacristan.ingredients.datasets.fitted import Preparation, TableColumns
from sacristan.ingredients.datasets.splitting import Split
from sacristan.ingredients.deployment import check_path, compare, describe, export, read_metadata

INPUTS = torch.randn(11, 1, 4, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(11) % 3


@pytest.fixture
def data(tensor_data):
    return tensor_data((INPUTS, LABELS), test=(INPUTS, LABELS))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Dropout(0.5), nn.Linear(8, 3))


def preparation(**entries):
    split = Split(seed=0, split_seed=0, limit=None, val_fraction=0.1, test_fraction=0.1, stratify=True)
    nothing = dict.fromkeys(field.name for field in dataclasses.fields(Preparation))
    return Preparation(**{**nothing, "task": "regression", "classes": (), "split": split, **entries})


def load(path):
    if path.suffix == ".pt2":
        return torch.export.load(path).module()
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    return lambda inputs: torch.from_numpy(session.run(None, {"inputs": inputs.numpy()})[0])


@pytest.mark.parametrize("format", [pytest.param("onnx", marks=pytest.mark.slow), "pt2"])
def test_export_computes_as_the_model_in_evaluation_mode_for_batches_of_any_size(data, model, tmp_path, format):
    path = tmp_path / f"model.{format}"
    model.train()
    told = describe(data, "classes", 3, preparation=False)
    found = export(model, data, path, {"run": "a", **told}, format=format)
    assert model.training
    assert found.absolute < 1e-5
    assert found.num_samples == 11
    exported = load(path)
    model.eval()
    for count in (1, 2, 11):
        assert torch.allclose(exported(INPUTS[:count]), model(INPUTS[:count]), atol=1e-5)
    kept = read_metadata(path)
    assert kept["run"] == "a"
    assert kept["classes"] == ["a", "b", "c"]
    assert kept["inputs"] == [{"name": "inputs", "shape": ["batch", 1, 4, 4], "dtype": "float32"}]
    # Where the model was written is nobody's business.
    assert b"site-packages" not in path.read_bytes()
    assert [other.name for other in tmp_path.iterdir()] == [path.name]


def test_export_takes_raw_values_and_returns_those_of_the_targets_unit_where_asked(tensor_data, tmp_path):
    by = preparation(
        mean=np.array([2.0, -1.0], np.float32),
        std=np.array([3.0, 0.5], np.float32),
        target_mean=np.array([10.0], np.float32),
        target_std=np.array([4.0], np.float32),
        table=TableColumns(("a", "b"), {}, missing="fill"),
    )
    raw = torch.tensor([[5.0, -1.0], [2.0, 0.0], [float("nan"), 1.0]])
    inputs = ((raw - torch.from_numpy(by.mean)) / torch.from_numpy(by.std)).nan_to_num(0.0)
    data = tensor_data((inputs, torch.zeros(3, 1)), test=(inputs, torch.zeros(3, 1)))
    data = dataclasses.replace(data, preparation=by)
    model = nn.Linear(2, 1)
    export(model, data, tmp_path / "model.pt2", {}, format="pt2", preparation=True)
    found = load(tmp_path / "model.pt2")(raw)
    assert torch.allclose(found, model(inputs) * 4 + 10, atol=1e-5)
    told = describe(data, "values", 1, preparation=True)["preparation"]
    assert (told["included"], told["mean"], told["target_std"]) == (True, [2.0, -1.0], [4.0])
    json.dumps(told)


def test_export_of_a_model_that_computes_otherwise_is_refused_and_leaves_the_old_file(data, tmp_path):
    class Switching(nn.Module):
        def forward(self, inputs):
            return inputs.flatten(1) * (2 if torch.compiler.is_compiling() else 1)

    path = tmp_path / "model.pt2"
    path.write_text("old")
    with pytest.raises(ModelError, match=r"the outputs of the file differ from the model's by .*; it is not kept"):
        export(Switching(), data, path, {}, format="pt2")
    assert path.read_text() == "old"
    assert [other.name for other in tmp_path.iterdir()] == [path.name]


class Forgetful(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(16, 3)

    def forward(self, inputs):
        return self.last(nn.functional.dropout(inputs.flatten(1), 0.5))  # also in evaluation mode


@pytest.mark.parametrize("format", [pytest.param("onnx", marks=pytest.mark.slow), "pt2"])
def test_export_of_a_model_that_differs_from_itself_says_so(data, tmp_path, format):
    message = (
        r"export: the model differs from itself by \S+ of its largest output when it computes the same inputs twice in "
        r"evaluation mode; .*dropout"
    )
    with pytest.raises(ModelError, match=message):
        export(Forgetful(), data, tmp_path / f"model.{format}", {}, format=format)
    assert list(tmp_path.iterdir()) == []


class Deciding(nn.Module):
    def forward(self, inputs):
        return inputs if inputs.sum() > 0 else -inputs


class OfOneSize(nn.Module):
    def forward(self, inputs):
        return inputs.view(8, -1)


class Structured(nn.Module):
    def forward(self, inputs):
        return {"outputs": inputs}


class Airy(nn.Module):
    def forward(self, inputs):
        return torch.special.airy_ai(inputs)


@pytest.mark.parametrize(
    ("model", "format", "message"),
    [
        (
            Deciding,
            "pt2",
            r"test_deployment.py:\d+: 'return inputs if inputs.sum\(\) > 0 .*data-dependent.*torch.where",
        ),
        (OfOneSize, "pt2", r"it computes only batches of 8 samples; take the size of a batch from"),
        (Structured, "pt2", r"export: the model returns a dict, expected a tensor"),
        pytest.param(
            *(
                Airy,
                "onnx",
                r"export.format=onnx: ONNX has no operation for aten.special_airy_ai; use export.format=pt2",
            ),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_export_of_what_cannot_be_names_the_operation(tensor_data, tmp_path, model, format, message, capfd):
    data = tensor_data((INPUTS[:8], LABELS[:8]), test=(INPUTS[:8], LABELS[:8]))
    with pytest.raises(ModelError, match=message) as caught:
        export(model(), data, tmp_path / "model", {}, format=format)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr().out == ""


@pytest.mark.slow
def test_export_of_attention_is_that_of_plain_operations(data, tmp_path):
    model = ViT((1, 4, 4), 3, patch=2, width=8, depth=1, heads=2)
    assert export(model, data, tmp_path / "model.pt2", {}, format="pt2").absolute < 1e-5
    program = torch.export.load(tmp_path / "model.pt2")
    assert not [node for node in program.graph.nodes if "_transformer_encoder_layer" in str(node.target)]
    assert torch.backends.mha.get_fastpath_enabled()


def test_export_without_samples_or_preparation_is_refused(data, tensor_data, model, tmp_path):
    empty = tensor_data((INPUTS, LABELS))
    with pytest.raises(DataError, match="export: there is no sample to compare the file on; give data with a test"):
        export(model, empty, tmp_path / "model.pt2", {}, format="pt2")
    with pytest.raises(DataError, match=r"export.preparation: the preparation of the data is not known here"):
        export(model, data, tmp_path / "model.pt2", {}, format="pt2", preparation=True)
    with pytest.raises(DataError, match="export: samples of any structure are not exported"):
        export(model, dataclasses.replace(data, task="custom"), tmp_path / "model.pt2", {}, format="pt2")


def test_path_that_is_there_or_ends_otherwise_is_refused(tmp_path):
    there = tmp_path / "model.onnx"
    there.write_text("old")
    with pytest.raises(ModelError, match=r"model.onnx already exists; give another name, or export.overwrite=True"):
        check_path(there, "onnx", overwrite=False)
    check_path(there, "onnx", overwrite=True)
    with pytest.raises(ModelError, match=r"expected a name that ends in .pt2 for export.format=pt2"):
        check_path(there, "pt2", overwrite=True)
    with pytest.raises(ModelError, match=r"but there is no folder .*nowhere; make it first"):
        check_path(tmp_path / "nowhere" / "model.onnx", "onnx", overwrite=False)


@pytest.mark.parametrize("is_there", [False, True])
def test_export_without_room_says_so_and_leaves_the_old_file_and_nothing_else(data, tmp_path, is_there):
    resource = pytest.importorskip("resource")
    path = tmp_path / "model.pt2"
    if is_there:
        path.write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(ModelError, match=r"model.pt2 cannot be written \(File too large\); give another one"):
            export(nn.Flatten(), data, path, {}, format="pt2")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [other.read_text() for other in tmp_path.iterdir()] == ["old"] * is_there


def test_compare_takes_nan_and_other_shapes_for_infinite():
    values = torch.tensor([[1.0, float("nan")], [4.0, float("inf")]])
    assert compare([(INPUTS[:2], values)], lambda given: values[: len(given)]).absolute == 0.0
    one_off = torch.tensor([[1.5, float("nan")], [4.0, float("inf")]])
    found = compare([(INPUTS[:2], values)], lambda given: one_off[: len(given)])
    assert (found.absolute, found.relative, found.num_samples) == (0.5, 0.125, 2)
    assert compare([(INPUTS[:2], values)], lambda given: values[: len(given)].nan_to_num()).absolute == float("inf")
    assert compare([(INPUTS[:2], values)], lambda given: values).absolute == float("inf")
