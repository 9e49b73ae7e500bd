"""Messages about a value of the wrong type: the value, the expected type, and an assignment that would work."""

from __future__ import annotations

import shlex
from typing import Any, get_args

from sacred.config.utils import undogmatize

from ingredients.config.entry_types import describe, parts_of
from ingredients.config.nearest import nearest
from observers.record.object_names import named, object_name

__all__ = ["misfit"]


def misfit(entry: str, value: Any, kind: Any, default: Any) -> str:
    """Return the message for a value of the wrong type, with what to write instead.

    Args:
        entry: Dotted name of the entry.
        value: The value.
        kind: The type of the entry.
        default: Its default; serves as an example.
    """
    default = undogmatize(default)
    if _is_local(value) and object_name(default) is not None:
        return (
            f"{entry}: got {value!r}, which cannot be imported: a lambda or local function is recorded by its source, "
            f"and taken from the config scope alone; leave {entry} out, or name a function: {entry}=package.module:name"
        )
    if isinstance(value, str) and float in parts_of(kind):
        if value.strip().lstrip("+-").lower() == "nan":
            reason = "NaN equals nothing, so no run could be found by it"
            return f"{entry}: got {value}, expected {describe(kind)}; {reason}"
        if value.strip("+-").lower() in ("inf", "infinity"):
            sign = "-" if value.startswith("-") else ""
            return _message(entry, value, kind, f"write infinity as {entry}={sign}1e999")
    if str in parts_of(kind) and isinstance(value, bool | int | float):
        text = shlex.quote(f'"{value}"')
        return _message(entry, value, kind, f"for the text write {entry}={text}")
    return _message(entry, value, kind, _hint(entry, value, kind, default))


def _message(entry: str, value: Any, kind: Any, hint: str) -> str:
    got = "nothing" if value == "" else f"{value!r} ({type(value).__name__})"
    return f"{entry}: got {got}, expected {describe(kind)}; {hint}"


def _hint(entry: str, value: Any, kind: Any, default: Any) -> str:
    """Return an assignment that works: of the nearest choice, or of the default."""
    name = entry
    if isinstance(default, dict) and default:
        key, default = next(iter(default.items()))
        name = f"{entry}.{key}"
    choices = _choices(kind)
    near = nearest(value, choices) if isinstance(value, str) else None
    example = "package.module:name" if _is_local(named(default)) else str(named(default))
    hint = f"did you mean {name}={near}?" if near else f"write for example {name}={shlex.quote(example)}"
    if isinstance(value, bool) and {"on", "off", "yes", "no"} & {*choices}:
        hint += "; in YAML write 'off' in quotes"
    return hint


def _choices(kind: Any) -> list[str]:
    return [choice for part in parts_of(kind) for choice in get_args(part) if isinstance(choice, str)]


def _is_local(name: Any) -> bool:
    return isinstance(name, str) and (name.startswith("lambda ") or "<locals>" in name)
