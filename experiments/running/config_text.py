"""The text of `print_config`: the entries of a config in order, the chosen ones, each with its origin and meaning."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from sacred.utils import PATHCHANGE, join_paths

from sacristan.configs.map import is_group
from sacristan.configs.nearest import suggestion
from sacristan.ingredients.errors import ConfigError
from sacristan.observers.record.object_names import named, object_name

__all__ = ["CHANGED", "check_words", "format_config", "in_order", "narrowed"]

# The word that chooses the entries which are not at their defaults.
CHANGED = "changed"
# The ingredients of the lab that people change first.
_FIRST = ("data", "model", "loss", "optimizer", "scheduler", "training")
# Columns that the entries take at most, and that their meanings take at least.
_MAX_WIDTH, _MIN_ROOM = 44, 20

# Pairs of a dotted name and a value; PATHCHANGE for a group, which its entries follow.
Rows = Sequence[tuple[str, Any]]


def in_order(config: Mapping[str, Any], ingredients: Mapping[str, Any]) -> Rows:
    """Sort the entries in the order in which people change them; `ingredients` are in the order of composition.

    The experiment's own come first, then those of its own ingredients, then data, model, loss, optimizer, scheduler,
    training, and then the other ingredients. Within each, the order of the declaration holds, plain entries first.
    """
    own = [name for name, part in ingredients.items() if not getattr(part, "is_of_lab", False)]
    order = list(dict.fromkeys([*own, *_FIRST, *ingredients]))
    known = {name: place for place, name in enumerate(order)}
    # A group of the experiment that is no ingredient is its own.
    return list(_rows(dict(sorted(config.items(), key=lambda item: known.get(item[0], -1)))))


def _rows(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in sorted(config.items(), key=lambda item: is_group(item[1])):
        entry = join_paths(path, name)
        if is_group(value):
            yield entry, PATHCHANGE
            yield from _rows(value, entry)
        else:
            yield entry, value


def check_words(words: Sequence[str], config: Mapping[str, Any], commands: Collection[str]) -> None:
    """Reject words after `print_config` that match no entry; the error suggests the nearest name or command."""
    entries = [entry for entry, _ in _rows(config)]
    for word in words:
        if word != CHANGED and not any(word in entry for entry in entries):
            hint = suggestion(
                word, [*commands, *entries], "print_config without it lists the settings, and help the commands"
            )
            raise ConfigError(f"{word}: there is no such command or setting; {hint}")


def narrowed(rows: Rows, words: Collection[str], is_changed: Callable[[str], bool]) -> Rows:
    """Return the entries whose dotted names contain one of the words, with their groups; all without words.

    The word `CHANGED` leaves out entries that are at their defaults.
    """
    parts = [word for word in words if word != CHANGED]
    entries = [entry for entry, value in rows if value is not PATHCHANGE]
    if parts:
        entries = [entry for entry in entries if any(part in entry for part in parts)]
    if CHANGED in words:
        entries = list(filter(is_changed, entries))
    kept = {*entries, *(entry[:end] for entry in entries for end, sign in enumerate(entry) if sign == ".")}
    return [(entry, value) for entry, value in rows if entry in kept]


def format_config(
    rows: Rows,
    changes: Any,
    colours: Mapping[str, str],
    origins: Mapping[str, str] = {},
    columns: int | None = None,
) -> list[str]:
    """Return the lines of `print_config`.

    `colours` are escape sequences by kind (changed, type, added, doc), empty for none. `origins` are those of entries
    that are not at their defaults. Docs are wrapped to `columns`; None for one line an entry.
    """
    texts = [(path, _entry(path, value)) for path, value in rows]
    most = _MAX_WIDTH if columns is None else min(_MAX_WIDTH, columns * 2 // 5)
    width = min(most, max((len(text) for _, text in texts), default=0))
    room = None if columns is None else max(_MIN_ROOM, columns - width - 4)
    end = "\033[0m" if colours["doc"] else ""
    lines = []
    for path, text in texts:
        kind = _kind_of_change(path, changes)
        shown = f"{colours[kind]}{text}{end}" if kind else text
        origin = f"[{origins[path]}]" if path in origins else ""
        doc = " ".join(filter(None, (origin, changes.docs.get(path, ""))))
        padding = " " * max(2, width + 2 - len(text))
        first, *rest = _wrapped(doc, room, has_row=len(text) <= width)
        lines.append(f"{shown}{padding}{colours['doc']}# {first}{end}" if first else shown)
        lines += [f"{' ' * (width + 2)}{colours['doc']}# {part}{end}" for part in rest]
    return lines


def _wrapped(doc: str, room: int | None, *, has_row: bool) -> list[str]:
    """Return the rows of a wrapped meaning; the first is on the entry's line, or empty if a long value fills that."""
    if room is None or not doc:
        return [doc]
    rows = textwrap.wrap(doc, room, break_long_words=False, break_on_hyphens=False)
    return rows if has_row else ["", *rows]


def _entry(path: str, value: Any) -> str:
    key = "  " * path.count(".") + path.rpartition(".")[2]
    return f"{key}:" if value is PATHCHANGE else f"{key} = {_shown(value)}"


def _kind_of_change(path: str, changes: Any) -> str:
    """Return the kind of change, a key of the colours; empty for an entry at its default."""
    if path in changes.typechanged:
        return "type"
    if path in changes.added:
        return "added"
    return "changed" if path in changes.modified else ""


def _shown(value: Any) -> str:
    """Return a value as one would type it: a class or function by its dotted name."""
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return object_name(value) or repr(named(value))
