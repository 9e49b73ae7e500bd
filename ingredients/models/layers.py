"""The layers of any model in order, from input to output, for learning rates that decay by layer."""

from __future__ import annotations

from torch import nn

from sacristan.ingredients.models.compiled import plain_name

__all__ = ["NORMS", "layers_of"]

# Normalisation layers; in a chain, they belong to the layer before.
NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase, nn.LocalResponseNorm)
_CHAINS = (nn.Sequential, nn.ModuleList)


def layers_of(model: nn.Module) -> list[tuple[str, list[str]]]:
    """Return the layers of a model that have parameters, in order of registration, with the names of the parameters.

    The model, chains (`nn.Sequential`, `nn.ModuleList`) and modules that contain a `nn.ModuleList` consist of layers;
    every other module is one layer. Parameters outside of layers, such as positions, belong to the first.

    Example:
        network = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
        assert [name for name, _ in layers_of(network)] == ["0", "2"]
    """
    layers: list[tuple[str, list[str]]] = []
    beside: list[str] = []
    seen: set[int] = set()

    def walk(name: str, module: nn.Module, *, is_root: bool = False) -> None:
        if is_root or isinstance(module, _CHAINS) or _holds_list(module):
            beside.extend(_new_names(name, module, seen, recurse=False))
            for child_name, child in module.named_children():
                walk(f"{name}.{child_name}".lstrip("."), child)
            return
        names = _new_names(name, module, seen, recurse=True)
        if layers and isinstance(module, NORMS):
            layers[-1][1].extend(names)
        elif names:
            layers.append((plain_name(name), names))

    root = getattr(model, "_orig_mod", model)
    walk("", root, is_root=True)
    if not layers:
        return [("", beside)] if beside else []
    layers[0][1][:0] = beside
    return layers


def _holds_list(module: nn.Module) -> bool:
    return any(isinstance(other, nn.ModuleList) for other in module.modules())


def _new_names(prefix: str, module: nn.Module, seen: set[int], *, recurse: bool) -> list[str]:
    """Return the plain names of parameters that are not in `seen`, and add these."""
    names = []
    for name, parameter in module.named_parameters(prefix, recurse=recurse):
        if id(parameter) not in seen:
            seen.add(id(parameter))
            names.append(plain_name(name))
    return names
