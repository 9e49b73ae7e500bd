"""`make_feature_extractor`: the outputs of chosen layers of a model."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from torch import nn

from sacristan.configs.nearest import suggestion
from sacristan.ingredients.errors import ModelError
from sacristan.ingredients.models.compiled import plain_name

__all__ = ["FeatureExtractor", "make_feature_extractor"]


class FeatureExtractor(nn.Module):
    """A model that returns the outputs of some of its layers by name.

    The model is shared, not copied, and features have gradients. Its layers have hooks only during a call.

    Args:
        layers: Names of the features by the dotted names of layers.

    Example:
        features = make_feature_extractor(network, {"head": "scores"})
        scores = features(torch.zeros(8, *batches.input_shape))["scores"]
    """

    def __init__(self, model: nn.Module, layers: Mapping[str, str]) -> None:
        super().__init__()
        self.model = model
        self._layers = dict(layers)

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Call the model and return the features by name, in the order of `layers`.

        A layer that is called several times gives its last output; one that is not called raises `ModelError`.
        """
        outputs: dict[str, Any] = {}
        named = {plain_name(name): module for name, module in self.model.named_modules()}
        with contextlib.ExitStack() as stack:
            for layer, name in self._layers.items():
                stack.callback(named[layer].register_forward_hook(_keeper(outputs, name)).remove)
            self.model(*args, **kwargs)
        missing = [layer for layer, name in self._layers.items() if name not in outputs]
        if missing:
            raise ModelError(f"features: the model did not call {', '.join(missing)} for this input")
        return {name: outputs[name] for name in self._layers.values()}


def make_feature_extractor(model: nn.Module, layers: Mapping[str, str]) -> FeatureExtractor:
    """Return a module that returns the outputs of layers of `model`; see `FeatureExtractor`.

    `layers` maps layer names, as `model.summary` shows them, to feature names: `{"body.2": "hidden", "head":
    "scores"}`.
    """
    named = [plain_name(name) for name, _ in model.named_modules() if plain_name(name)]
    for layer in layers:
        if layer not in named:
            hint = suggestion(layer, named, f"there are: {', '.join(named[:8])}, ...")
            raise ModelError(f"features: {type(model).__name__} has no layer {layer!r}; {hint}")
    if len(set(layers.values())) < len(layers):
        raise ModelError(
            f"features: got the names {', '.join(layers.values())}; expected a different one for each layer"
        )
    return FeatureExtractor(model, layers)


def _keeper(outputs: dict[str, Any], name: str) -> Any:
    def keep(module: nn.Module, args: Any, output: Any) -> None:
        outputs[name] = output

    return keep
