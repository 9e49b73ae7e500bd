"""`Parameter`: an entry of the config, the law of its values, and the condition under which it is set."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from sacristan.configs.nearest import word_suggestion
from sacristan.runs.errors import SweepError
from sacristan.runs.sweeps.spec.fields import check_keys, identity, listing, mapping, shown
from sacristan.runs.sweeps.spec.laws import LAW_KEYS, Choice, Constant, Law, read_law

__all__ = ["Parameter", "read_parameters"]

# wandb's names, except that no part of a dotted name is empty.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")
_KEYS = (*LAW_KEYS, "parameters", "when")

_Condition = dict[str, tuple[Any, ...]]
_read_nested = mapping("{lr: {min: 0.001, max: 0.1}}")
_read_when = mapping("{optimizer.name: sgd}")


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One parameter of a sweep.

    Attributes:
        name: The entry of the config, dotted: `optimizer.lr`.
        when: The values that other parameters must have for this one to be set, by their names; empty if it always is.
    """

    name: str
    law: Law
    when: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)

    def is_active(self, point: Mapping[str, Any]) -> bool:
        """Tell whether the parameter is set at a point, which lacks the parameters that are not set themselves."""
        return all(
            name in point and identity(point[name]) in map(identity, values) for name, values in self.when.items()
        )


def read_parameters(where: str, value: Any) -> dict[str, Parameter]:
    """Read the parameters of a spec, nested ones included, by their dotted names.

    They are in wandb's order: sorted by name at each depth.
    """
    parameters: dict[str, Parameter] = {}
    for path, parameter in _walk(where, "", _read_nested(where, value), {}):
        _check_name(path, parameter.name, parameters)
        parameters[parameter.name] = parameter
    for parameter in parameters.values():
        for name, values in parameter.when.items():
            _check_condition(f"{where}.{parameter.name}.when.{name}", parameter.name, name, values, parameters)
    return parameters


def _walk(
    where: str, prefix: str, document: Mapping[str, Any], condition: _Condition
) -> Iterator[tuple[str, Parameter]]:
    """Yield each parameter with its path; `condition` holds for all of them."""
    for key, entry in sorted(document.items()):
        path, name = f"{where}.{key}", f"{prefix}{key}"
        if not _NAME.fullmatch(key):
            raise SweepError(f"{path}: got the name {key!r}, expected letters, digits, _ and -, and dots between parts")
        if not isinstance(entry, Mapping):
            example = f"{{values: {entry}}}" if isinstance(entry, list) else f"{{value: {shown(entry)}}}"
            raise SweepError(f"{path}: got {shown(entry)}, expected a mapping; write {key}: {example}")
        check_keys(path, entry, _KEYS, "a parameter")
        rest = dict(entry)
        when = condition | _condition(f"{path}.when", rest.pop("when", {}))
        if "parameters" not in rest:
            yield path, Parameter(name, read_law(path, rest), when)
            continue
        nested = rest.pop("parameters")
        if rest:
            other = next(iter(rest))
            raise SweepError(f"{path}: got parameters and {other}, expected one of them; nest {other}, or drop it")
        yield from _walk(f"{path}.parameters", f"{name}.", _read_nested(f"{path}.parameters", nested), when)


def _condition(where: str, value: Any) -> _Condition:
    document = {} if value == {} else _read_when(where, value)
    return {name: tuple(values) if isinstance(values, list) else (values,) for name, values in document.items()}


def _check_name(where: str, name: str, parameters: Mapping[str, Parameter]) -> None:
    if name in parameters:
        raise SweepError(f"{where}: {name} is a parameter already; remove one of the two")
    for other in parameters:
        if other.startswith(f"{name}.") or name.startswith(f"{other}."):
            outer, inner = sorted((name, other), key=len)
            raise SweepError(f"{where}: {inner} is a part of {outer}, which is also a parameter; remove one of the two")


def _check_condition(
    where: str, name: str, parent: str, values: tuple[Any, ...], parameters: Mapping[str, Parameter]
) -> None:
    """Reject conditions on unknown parameters, on values that a parameter never has, and circles."""
    if parent not in parameters:
        hint = word_suggestion(parent, parameters)
        raise SweepError(f"{where}: is no parameter of the sweep; {hint}")
    if name in _ancestors(parent, parameters):
        raise SweepError(f"{where}: {name} depends on itself; remove one of the conditions")
    law = parameters[parent].law
    if not isinstance(law, Choice | Constant):
        raise SweepError(f"{where}: {parent} has a range, expected a parameter with values; list them")
    known = list(map(identity, law.ends()))
    for value in values:
        if identity(value) not in known:
            raise SweepError(f"{where}: got {shown(value)}, expected {listing(map(repr, law.ends()))}")


def _ancestors(name: str, parameters: Mapping[str, Parameter]) -> set[str]:
    """Return a parameter and all others that it depends on."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        parent = waiting.pop()
        if parent not in seen:
            seen.add(parent)
            waiting += parameters[parent].when if parent in parameters else ()
    return seen
