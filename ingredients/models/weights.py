"""Loading of weights into a model that may differ from the one that saved them, without Sacred."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from sacristan.configs.map import abbreviated
from sacristan.ingredients.errors import ModelError
from sacristan.ingredients.models.compiled import load_plain_state_dict, plain_names, plain_state_dict

__all__ = ["WeightsReport", "check_rename", "load_weights_into", "rename"]

# Names of each kind that a message or the log shows.
_NUM_SHOWN = 6


@dataclasses.dataclass(frozen=True)
class WeightsReport:
    """Comparison of the weights in a file with a model.

    Attributes:
        loaded: Names in both with the same shape.
        missing: Names in the model only.
        unexpected: Names in the file only.
        reshaped: Names in both with different shapes, with the shape in the file and that in the model.
    """

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    reshaped: Mapping[str, tuple[list[int], list[int]]]

    @classmethod
    def of(cls, theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> WeightsReport:
        """Compare the state dicts of a file (`theirs`) and the model (`mine`), both with plain names."""
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
        """Return a line for each kind of difference, with its first names."""
        reshaped = [f"{name} {theirs} there, {mine} here" for name, (theirs, mine) in self.reshaped.items()]
        kinds = (("of another shape", reshaped), ("missing there", self.missing), ("unexpected", self.unexpected))
        return [f"{kind}: {_first(names)}" for kind, names in kinds if names]

    def describe(self, source: str) -> str:
        """Return the report for the log: a line of counts, and a line for each kind of difference."""
        total = len(self.loaded) + len(self.missing) + len(self.reshaped)
        left = ", the others stay as initialised" if self.missing or self.reshaped else ""
        first = f"weights of {source}: loaded {len(self.loaded)} of the model's {total} tensors{left}"
        return "\n  ".join([first, *self.differences()])

    def as_dict(self) -> dict[str, Any]:
        """Return the report for the info of a run."""
        reshaped = [{"name": name, "there": there, "here": here} for name, (there, here) in self.reshaped.items()]
        lists = {"loaded": self.loaded, "missing": self.missing, "unexpected": self.unexpected}
        return {**{name: list(names) for name, names in lists.items()}, "reshaped": reshaped}


def _shape(value: Any) -> list[int]:
    return list(value.shape) if isinstance(value, Tensor) else []


def _first(names: Sequence[str]) -> str:
    return abbreviated(names, _NUM_SHOWN, ", and {} more")


def check_rename(rules: Iterable[Any]) -> list[tuple[re.Pattern[str], str]]:
    """Check `model.rename`, entries `{match: REGEX, to: TEXT}`, and return its compiled rules."""
    compiled = []
    for rule in rules:
        is_rule = isinstance(rule, Mapping) and rule.keys() == {"match", "to"}
        if not is_rule or not all(isinstance(value, str) for value in rule.values()):
            raise ModelError(f"model.rename: got {rule!r}, expected an entry like {{match: '^backbone\\.', to: ''}}")
        try:
            pattern = re.compile(rule["match"])
            pattern.sub(rule["to"], "")
        except (re.error, IndexError) as error:
            raise ModelError(
                f"model.rename: got {dict(rule)!r}, which is not a valid regular expression: {error}"
            ) from error
        compiled.append((pattern, rule["to"]))
    return compiled


def rename(state: Mapping[str, Any], rules: Iterable[Mapping[str, str]]) -> dict[str, Any]:
    r"""Rename the entries of a state dict by rules, one after the other, as `re.sub` does.

    `to` may refer to groups of `match` as `\1`. Raises `ModelError` if a rule matches no name, or two entries get the
    same one.
    """
    names = {name: name for name in state}
    for pattern, text in check_rename(rules):
        if not any(map(pattern.search, names.values())):
            raise ModelError(
                f"model.rename: {pattern.pattern!r} matches no name in the file; it has: {_first([*names.values()])}"
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
    """Load a state dict into a model, compiled or not, and return a report; rejected weights leave it unchanged.

    Without `strict`, tensors that differ in name or shape stay as initialised; at least one must fit.
    """
    theirs, mine = plain_names(state), plain_state_dict(model)
    report = WeightsReport.of(theirs, mine)
    if strict and not report.is_exact:
        raise ModelError(
            f"model.weights: {source} does not fit this model ({'; '.join(report.differences())}); load what fits with "
            "model.strict=False, or rename the entries of the file with model.rename"
        )
    if not report.loaded:
        raise ModelError(
            f"model.weights: nothing in {source} fits this model; the file has {_first([*theirs])}, the model "
            f"{_first([*mine])}; see model.rename"
        )
    load_plain_state_dict(model, {name: theirs[name] for name in report.loaded}, strict=report.is_exact)
    return report
