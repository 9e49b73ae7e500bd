"""`Parameter`: an entry of the config, the law of its values, and the condition under which it is set."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from runs.errors import SweepError
from runs.sweeps.spec.checking import check_keys, check_mapping, identity, listing, nearest, shown
from runs.sweeps.spec.laws import LAW_KEYS, Choice, Constant, Law, read_law

__all__ = ["Parameter", "read_parameters"]

# wandb's, but that no part of a dotted name is empty.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")
_KEYS = (*LAW_KEYS, "parameters", "when")


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One parameter of a sweep.

    Attributes:
        name: The entry of the config, dotted: `optimizer.lr`.
        law: What its values are drawn from.
        when: The values that other parameters must have for this one to be set, by their names; none if it always is.
    """

    name: str
    law: Law
    when: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)

    def is_active(self, point: Mapping[str, Any]) -> bool:
        """Tell whether it is set at a point, which has the parameters that its condition names, as far as they are."""
        return all(
            name in point and identity(point[name]) in map(identity, values) for name, values in self.when.items()
        )


def read_parameters(document: Any) -> dict[str, Parameter]:
    """Return the parameters by their names, in wandb's order: sorted by name, at each depth.

    Raises:
        SweepError: If a parameter or a condition makes no sense.
    """
    check_mapping("parameters", document, "{lr: {min: 0.001, max: 0.1}}")
    found: dict[str, Parameter] = {}
    for where, parameter in _walk("parameters", "", document, {}):
        _check_name(where, parameter.name, found)
        found[parameter.name] = parameter
    for parameter in found.values():
        _check_condition(parameter, found)
    return found


def _walk(
    where: str, prefix: str, document: Mapping[str, Any], condition: dict[str, tuple[Any, ...]]
) -> Iterator[tuple[str, Parameter]]:
    for key, entry in sorted(document.items()):
        path, name = f"{where}.{key}", f"{prefix}{key}"
        if not _NAME.fullmatch(key):
            raise SweepError(f"{path}: got the name {key!r}, expected letters, digits, _ and -, and dots between parts")
        if not isinstance(entry, Mapping):
            example = f"{{values: {entry}}}" if isinstance(entry, list) else f"{{value: {shown(entry)}}}"
            raise SweepError(f"{path}: got {shown(entry)}, expected a mapping; write {key}: {example}")
        check_keys(path, entry, _KEYS, "a parameter")
        when = {**condition, **_read_condition(path, entry.get("when", {}))}
        if "parameters" not in entry:
            law = read_law(path, {key: value for key, value in entry.items() if key != "when"})
            yield path, Parameter(name, law, when)
            continue
        others = [other for other in entry if other not in ("parameters", "when")]
        if others:
            raise SweepError(
                f"{path}: got parameters and {others[0]}, expected one of them; nest {others[0]}, or drop it"
            )
        nested = check_mapping(f"{path}.parameters", entry["parameters"], "{lr: {min: 0.001, max: 0.1}}")
        yield from _walk(f"{path}.parameters", f"{name}.", nested, when)


def _read_condition(where: str, document: Any) -> dict[str, tuple[Any, ...]]:
    if document == {}:
        return {}
    check_mapping(f"{where}.when", document, "{optimizer.name: sgd}")
    return {name: tuple(value) if isinstance(value, list) else (value,) for name, value in document.items()}


def _check_name(where: str, name: str, found: Mapping[str, Parameter]) -> None:
    if name in found:
        raise SweepError(f"{where}: {name} is a parameter already; remove one of the two")
    for other in found:
        if other.startswith(f"{name}.") or name.startswith(f"{other}."):
            outer, inner = sorted((name, other), key=len)
            raise SweepError(f"{where}: {inner} is a part of {outer}, which is a parameter, too; remove one of the two")


def _check_condition(parameter: Parameter, found: Mapping[str, Parameter]) -> None:
    """Refuse conditions on what is no parameter, or on a value that it never has, and circles."""
    for name, wanted in parameter.when.items():
        where = f"parameters.{parameter.name}.when.{name}"
        if name not in found:
            near = nearest(name, found)
            hint = f"; did you mean {near}?" if near else f"; there are: {', '.join(found)}"
            raise SweepError(f"{where}: is no parameter of the sweep{hint}")
        if name == parameter.name or _depends(found[name], parameter.name, found, set()):
            raise SweepError(f"{where}: {parameter.name} depends on itself; remove one of the conditions")
        law = found[name].law
        if not isinstance(law, Choice | Constant):
            raise SweepError(f"{where}: {name} has a range, expected a parameter with values; list them")
        known = list(map(identity, law.ends()))
        for value in wanted:
            if identity(value) not in known:
                raise SweepError(f"{where}: got {shown(value)}, expected {listing(map(repr, law.ends()))}")


def _depends(parameter: Parameter, name: str, found: Mapping[str, Parameter], seen: set[str]) -> bool:
    for parent in parameter.when:
        if parent == name:
            return True
        if parent in found and parent not in seen:
            seen.add(parent)
            if _depends(found[parent], name, found, seen):
                return True
    return False
