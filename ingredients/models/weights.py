"""Putting weights into a model that may differ from the one they were saved of. Without Sacred."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from ingredients.errors import ModelError
from ingredients.models.compiled import load_plain_state_dict, plain_names, plain_state_dict

__all__ = ["WeightsReport", "check_rename", "load_weights_into", "rename"]

# Names shown of each kind, where a message or the log lists them.
_NUM_SHOWN = 6


@dataclasses.dataclass(frozen=True)
class WeightsReport:
    """Match of the weights in a file with a model.

    Attributes:
        loaded: Names in both, of the same shape.
        missing: Names of the model that the file lacks.
        unexpected: Names of the file that the model lacks.
        reshaped: Names in both, of another shape: that of the file, and that of the model.
    """

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    reshaped: Mapping[str, tuple[list[int], list[int]]]

    @classmethod
    def of(cls, theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> WeightsReport:
        """Compare the state dict of a file with that of a model, both with plain names."""
        shared = [name for name in mine if name in theirs]
        reshaped = {
            name: (_shape(theirs[name]), _shape(mine[name]))
            for name in shared
            if _shape(theirs[name]) != _shape(mine[name])
        }
        return cls(
            tuple(name for name in shared if name not in reshaped),
            tuple(name for name in mine if name not in theirs),
            tuple(name for name in theirs if name not in mine),
            reshaped,
        )

    @property
    def is_exact(self) -> bool:
        """True if file and model have the same names and shapes."""
        return not (self.missing or self.unexpected or self.reshaped)

    def differences(self) -> list[str]:
        """Return a line for each kind of difference, with the first names of it."""
        reshaped = [f"{name} {theirs} there, {mine} here" for name, (theirs, mine) in self.reshaped.items()]
        kinds = (("of another shape", reshaped), ("missing there", self.missing), ("unexpected", self.unexpected))
        return [f"{kind}: {_listed(names)}" for kind, names in kinds if names]

    def describe(self, source: str) -> str:
        """Return the report as the log shows it: one line, and one for each kind of difference."""
        total = len(self.loaded) + len(self.missing) + len(self.reshaped)
        left = ", the others stay as initialised" if self.missing or self.reshaped else ""
        first = f"weights of {source}: loaded {len(self.loaded)} of the model's {total} tensors{left}"
        return "\n  ".join([first, *self.differences()])

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a run's info keeps it."""
        reshaped = [{"name": name, "there": there, "here": here} for name, (there, here) in self.reshaped.items()]
        lists = {"loaded": self.loaded, "missing": self.missing, "unexpected": self.unexpected}
        return {**{name: list(names) for name, names in lists.items()}, "reshaped": reshaped}


def _shape(value: Any) -> list[int]:
    return list(value.shape) if isinstance(value, Tensor) else []


def _listed(names: Sequence[str]) -> str:
    more = f", and {len(names) - _NUM_SHOWN} more" if len(names) > _NUM_SHOWN else ""
    return ", ".join(names[:_NUM_SHOWN]) + more


def check_rename(rules: Iterable[Any]) -> list[tuple[re.Pattern[str], str]]:
    """Return the rules of `model.rename`, compiled.

    Raises:
        ModelError: If one is not of the form `{match: REGEX, to: TEXT}`, or its expression is none.
    """
    found = []
    for rule in rules:
        is_rule = isinstance(rule, Mapping) and rule.keys() == {"match", "to"}
        if not is_rule or not all(isinstance(value, str) for value in rule.values()):
            raise ModelError(f"model.rename: got {rule!r}, expected an entry like {{match: '^backbone\\.', to: ''}}")
        try:
            pattern = re.compile(rule["match"])
            pattern.sub(rule["to"], "")
        except (re.error, IndexError) as error:
            raise ModelError(f"model.rename: got {dict(rule)!r}, which is no regular expression: {error}") from error
        found.append((pattern, rule["to"]))
    return found


def rename(state: Mapping[str, Any], rules: Iterable[Mapping[str, str]]) -> dict[str, Any]:
    r"""Return a state dict with other names: each rule in turn replaces what it matches, as `re.sub` does.

    Args:
        state: The state dict.
        rules: Mappings with `match`, a regular expression, and `to`, which may refer to its groups as `\1`.

    Raises:
        ModelError: If a rule is none, matches no name, or gives two entries the same name.
    """
    names = {name: name for name in state}
    for pattern, text in check_rename(rules):
        if not any(pattern.search(new) for new in names.values()):
            raise ModelError(
                f"model.rename: {pattern.pattern!r} matches no name in the file; it has: {_listed([*names.values()])}"
            )
        names = {old: pattern.sub(text, new) for old, new in names.items()}
    taken: dict[str, str] = {}
    for old, new in names.items():
        if new in taken:
            raise ModelError(
                f"model.rename: both {taken[new]!r} and {old!r} become {new!r}; give more exact expressions"
            )
        taken[new] = old
    return {new: state[old] for new, old in taken.items()}


def load_weights_into(model: nn.Module, state: Mapping[str, Any], *, strict: bool, source: str) -> WeightsReport:
    """Load a state dict into a model, and return what fitted.

    Args:
        model: The model, compiled or not; it stays as it was if the weights are refused.
        state: The state dict.
        strict: Whether names and shapes must all be the same. Otherwise what differs stays as initialised.
        source: Where the weights come from, for messages.

    Raises:
        ModelError: If they differ in a name or a shape and `strict`, or nothing of them fits.
    """
    theirs, mine = plain_names(state), plain_state_dict(model)
    report = WeightsReport.of(theirs, mine)
    if strict and not report.is_exact:
        raise ModelError(
            f"model.weights: {source} does not fit this model ({'; '.join(report.differences())}); load what fits with "
            "model.strict=False, or give its names in the file with model.rename"
        )
    if not report.loaded:
        raise ModelError(
            f"model.weights: nothing in {source} fits this model; the file has {_listed([*theirs])}, the model "
            f"{_listed([*mine])}; see model.rename"
        )
    load_plain_state_dict(model, {name: theirs[name] for name in report.loaded}, strict=report.is_exact)
    return report
