from __future__ import annotations

import pytest
import torch
from torch import nn

from sacristan.ingredients.errors import ConfigError
from sacristan.ingredients.inspection.probes import draw, feature_maps, look, print_seen


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(3 * 16, 2))


@pytest.fixture
def batch():
    torch.manual_seed(0)
    return torch.randn(8, 1, 6, 6), torch.arange(8) % 2


def test_all_leaves_are_looked_at_and_nothing_stays(model, batch):
    found = look(model, nn.functional.cross_entropy, batch)
    assert [(seen.name, seen.kind) for seen in found] == [
        ("0", "Conv2d"),
        ("1", "ReLU"),
        ("2", "Flatten"),
        ("3", "Linear"),
    ]
    model.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    last = found[-1]
    norms = torch.stack([parameter.grad.norm() for parameter in model[3].parameters()])
    assert last.grad_norm == pytest.approx(norms.norm().item(), rel=1e-4)
    assert last.figures["output_mean"] == pytest.approx(model(batch[0]).mean().item(), abs=1e-5)
    assert all(not module._forward_hooks for module in model.modules())
    assert found[2].weight_norm is None


def test_globs_choose_and_a_glob_without_a_module_is_refused(model, batch):
    assert [seen.name for seen in look(model, nn.functional.cross_entropy, batch, ["[13]"])] == ["1", "3"]
    with pytest.raises(ConfigError, match=r"probe\.modules: got 'x', which is no module's name; there are: 0, 1, 2, 3"):
        look(model, nn.functional.cross_entropy, batch, ["x"])


@pytest.mark.slow
def test_what_was_seen_is_printed_and_drawn(model, batch, capsys, tmp_path):
    found = look(model, nn.functional.cross_entropy, batch)
    print_seen(found)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["layer", "type", "output"]
    assert lines[1].split()[:3] == ["0", "Conv2d", "3x4x4"]
    draw(found, tmp_path / "probe.png")
    assert (tmp_path / "probe.png").read_bytes().startswith(b"\x89PNG")


def test_feature_maps_stand_side_by_side_each_over_its_own_range():
    maps = torch.stack([torch.linspace(0, 1, 9).view(3, 3), torch.full((3, 3), 7.0), torch.eye(3) * 1e3])
    image = feature_maps(maps)
    assert image.shape == (8, 8)
    assert (image.min(), image.max()) == (0, 1)
    torch.testing.assert_close(image[:3, :3], maps[0])
    torch.testing.assert_close(image[4:7, :3], torch.eye(3))
