"""Freezing of parts of a model, permanently or until an epoch, by globs on names of modules and parameters.

A glob that matches a module freezes everything in it. Frozen parameters require no gradient. Normalisation layers of
frozen parts stay in evaluation mode despite `model.train()`, so their statistics are frozen with their weights.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from sacristan.configs.nearest import suggestion
from sacristan.ingredients.errors import ModelError
from sacristan.ingredients.models.modules import plain_name

__all__ = ["Freezing", "check_globs", "check_unfreeze", "freezings_of", "matches", "will_train"]

# Attribute of a frozen parameter that is trained from a later epoch on.
_MARK = "_trained_later"
# Attribute of a model with its `Freezing`, if parts are unfrozen later.
_FREEZING = "_freezing"


class Freezing:
    """Freezes parts of a model in place, some only until an epoch begins; `fit` unfreezes those.

    Args:
        globs: Parts to freeze permanently, such as `features.*` or `*.bias`.
        unfreeze: Parts to freeze until an epoch: mappings with `epoch`, the first (counted from 1) that trains them,
            and `match`, a glob or a list of globs. It overrides `globs` from that epoch on.
        whole: Whether all modules of frozen parts, such as dropout, stay in evaluation mode, or only normalisation.

    Example:
        freezing = Freezing(network, ["0", "1"], [{"epoch": 3, "match": "1"}])
        freezing.begin_epoch(3)
        assert [name for name, value in network.named_parameters() if not value.requires_grad] == ["0.weight", "0.bias"]
    """

    def __init__(
        self,
        model: nn.Module,
        globs: Sequence[str] = (),
        unfreeze: Iterable[Mapping[str, Any]] = (),
        *,
        whole: bool = False,
    ) -> None:
        self._model = model
        self._whole = whole
        self._later = check_unfreeze(unfreeze)
        self._globs = list(globs)
        check_globs(model, self._globs, "model.freeze")
        check_globs(model, [glob for _, later in self._later for glob in later], "model.unfreeze")
        for name, parameter in _named_parameters(model):
            if any(matches(name, later) for _, later in self._later):
                setattr(parameter, _MARK, True)
        if self._later:
            model.__dict__[_FREEZING] = self
        self.begin_epoch(1)

    def frozen_after(self, epoch: int) -> list[str]:
        """Return the globs of parts that are still frozen in an epoch, counted from 1, and trained later."""
        return [glob for first, globs in self._later if first > epoch for glob in globs]

    def opened_in(self, epoch: int) -> list[str]:
        """Return the globs of parts whose training begins in an epoch, counted from 1."""
        return [glob for first, globs in self._later if first == epoch for glob in globs]

    def begin_epoch(self, epoch: int) -> None:
        """Freeze the parts that are frozen in an epoch, from 1, and unfreeze the others that this object manages."""
        opened = [glob for first, globs in self._later if first <= epoch for glob in globs]
        closed = self.frozen_after(epoch)

        def is_frozen(name: str) -> bool:
            return matches(name, closed) or (matches(name, self._globs) and not matches(name, opened))

        own_globs = [*self._globs, *opened, *closed]
        for name, parameter in _named_parameters(self._model):
            if matches(name, own_globs):
                parameter.requires_grad_(not is_frozen(name))
        for name, module in self._model.named_modules(remove_duplicate=False):
            own = list(module.parameters(recurse=False))
            is_whole = is_frozen(plain_name(name)) or (own and not any(parameter.requires_grad for parameter in own))
            if self._whole or isinstance(module, nn.modules.batchnorm._NormBase):
                _hold_in_eval(module, bool(is_whole), self._model.training)


def freezings_of(model: nn.Module) -> list[Freezing]:
    """Return the `Freezing` of a model and of models in it, if parts of them are unfrozen later."""
    return [module.__dict__[_FREEZING] for module in model.modules() if _FREEZING in module.__dict__]


def will_train(parameter: nn.Parameter) -> bool:
    """Return whether a parameter is trained, now or from a later epoch on."""
    return parameter.requires_grad or getattr(parameter, _MARK, False)


def check_unfreeze(entries: Iterable[Any]) -> list[tuple[int, list[str]]]:
    """Check `model.unfreeze`, and return its entries as epochs and globs.

    Entries are `{epoch: 3, match: GLOB}`, or with a list of globs, from the second epoch on.
    """
    parsed = []
    for entry in entries:
        if not isinstance(entry, Mapping) or entry.keys() != {"epoch", "match"}:
            raise ModelError(f"model.unfreeze: got {entry!r}, expected an entry like {{epoch: 3, match: 'features.*'}}")
        globs = [entry["match"]] if isinstance(entry["match"], str) else entry["match"]
        if not isinstance(globs, Sequence) or not globs or not all(isinstance(glob, str) for glob in globs):
            raise ModelError(
                f"model.unfreeze: got {entry['match']!r}, expected a glob such as 'features.*', or a list of them"
            )
        if type(entry["epoch"]) is not int or entry["epoch"] < 2:
            raise ModelError(
                f"model.unfreeze: got epoch={entry['epoch']!r}, expected the first that trains {globs[0]!r}: 2 or later"
            )
        parsed.append((entry["epoch"], list(globs)))
    return parsed


def check_globs(model: nn.Module, globs: Iterable[str], entry: str) -> None:
    """Reject globs that match no module and no parameter; the error suggests the nearest name."""
    parameters = [name for name, _ in _named_parameters(model)]
    names = [*(plain_name(name) for name, _ in model.named_modules() if name), *parameters]
    for glob in globs:
        if not any(matches(name, [glob]) for name in names):
            top = ", ".join(plain_name(name) for name, _ in model.named_children())
            hint = suggestion(glob.rstrip("*").rstrip("."), names, f"there are: {top}; model.summary shows all")
            raise ModelError(f"{entry}: {glob!r} matches no module and no parameter; {hint}")


def matches(name: str, globs: Iterable[str]) -> bool:
    """Return whether a glob matches a dotted name or that of a module that contains it."""
    parts = name.split(".")
    names = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
    return any(fnmatchcase(prefix, glob) for glob in globs for prefix in names)


def _named_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters; shared ones under each of their names."""
    return [(plain_name(name), parameter) for name, parameter in model.named_parameters(remove_duplicate=False)]


def _hold_in_eval(module: nn.Module, hold: bool, training: bool) -> None:
    """Keep a module in evaluation mode, or let it follow the model's `training` mode again."""
    if hold:
        # On the instance: `train` of any module around it calls this one. A copy of the module gets its own.
        module.__dict__["train"] = types.MethodType(train, module)
        module.train()
    elif module.__dict__.pop("train", None) is not None:
        module.train(training)


def train(self: nn.Module, mode: bool = True) -> nn.Module:
    """Stay in evaluation mode; replaces `nn.Module.train` of a frozen module."""
    return type(self).train(self, False)
