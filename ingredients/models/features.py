"""`make_feature_extractor`: what layers of a model return, beside or in place of what the model returns."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from torch import nn

from ingredients.config.nearest import nearest
from ingredients.errors import ModelError
from ingredients.models.compiled import plain_name

__all__ = ["FeatureExtractor", "make_feature_extractor"]


class FeatureExtractor(nn.Module):
    """A model that returns what some of its layers return, by name.

    The model is shared, not copied: parameters, mode and device are its own, and features have gradients. Hooks are on
    its layers while it is called, and at no other time, however the call ends.

    Args:
        model: The model.
        layers: Names of features, by the dotted names of layers.

    Example:
        features = make_feature_extractor(network, {"head": "scores"})
        scores = features(torch.zeros(8, *batches.input_shape))["scores"]
    """

    def __init__(self, model: nn.Module, layers: Mapping[str, str]) -> None:
        super().__init__()
        self.model = model
        self._layers = dict(layers)

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Call the model, and return the features, in the order in which they were asked for.

        Of a layer that is called several times, it is what the last call returned.

        Raises:
            ModelError: If a layer was not called.
        """
        found: dict[str, Any] = {}
        named = {plain_name(name): module for name, module in self.model.named_modules()}
        with contextlib.ExitStack() as stack:
            for layer, name in self._layers.items():
                stack.callback(named[layer].register_forward_hook(_keeper(found, name)).remove)
            self.model(*args, **kwargs)
        missing = [layer for layer, name in self._layers.items() if name not in found]
        if missing:
            raise ModelError(f"features: the model did not call {', '.join(missing)} for this input")
        return {name: found[name] for name in self._layers.values()}


def make_feature_extractor(model: nn.Module, layers: Mapping[str, str]) -> FeatureExtractor:
    """Return a module that returns what layers of `model` return; see `FeatureExtractor`.

    Args:
        model: Any model; nested layers are named with dots, as `model.summary` shows.
        layers: Names of features, by the names of layers: `{"body.2": "hidden", "head": "scores"}`.

    Raises:
        ModelError: If there is no such layer, or two features have one name.
    """
    named = [plain_name(name) for name, _ in model.named_modules() if plain_name(name)]
    for layer in layers:
        if layer not in named:
            near = nearest(layer, named)
            hint = f"did you mean {near}?" if near else f"there are: {', '.join(named[:8])}, ..."
            raise ModelError(f"features: {type(model).__name__} has no layer {layer!r}; {hint}")
    if len(set(layers.values())) < len(layers):
        raise ModelError(f"features: got the names {', '.join(layers.values())}; expected another one for each layer")
    return FeatureExtractor(model, layers)


def _keeper(found: dict[str, Any], name: str) -> Any:
    def keep(module: nn.Module, args: Any, output: Any) -> None:
        found[name] = output

    return keep
