"""`print_config`, `print_named_configs` and `save_config`, instead of Sacred's; and `replay`.

`replay` runs the experiment's main function up to its training, which then repeats one step alone. The training asks
`bundle_to_replay` for the bundle, repeats the step that it holds, and raises `Replayed`. So model, task and the
optimizers are those that the experiment itself makes.
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import logging
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import sacred
from sacred.utils import PATHCHANGE, join_paths

from sacristan.configs.files import typed_name
from sacristan.configs.map import is_group
from sacristan.configs.nearest import suggestion
from sacristan.ingredients.config.named_configs import write_config_file
from sacristan.ingredients.errors import ConfigError
from sacristan.observers.record.object_names import named, object_name
from sacristan.observers.record.schema import CONFIG

_COLOURS = {"changed": "\033[34m", "type": "\033[31m", "added": "\033[32m", "doc": "\033[2m"}


def lacking(experiment: sacred.Experiment, command: Callable | None) -> list[str]:
    """Return the names of the ingredients that a command (None needs none) requires and an experiment lacks."""
    needs = getattr(command, "needs", ())
    own = {ingredient.path for ingredient, _ in experiment.traverse_ingredients()} if needs else ()
    return [needed for needed in needs if needed not in own]


def unread_tools(experiment: sacred.Experiment, command: str) -> dict[str, list[str]]:
    """Return the tools whose settings a command does not read, with the commands that do."""
    commands = list(experiment.gather_commands())
    unread: dict[str, list[str]] = {}
    for tool in [part for part, _ in experiment.traverse_ingredients() if getattr(part, "is_tool", False)]:
        own = f"{tool.path}."
        readers = [name for name, each in commands if name.startswith(own) or tool.path in getattr(each, "needs", ())]
        if readers and command not in readers:
            unread[tool.path] = readers
    return unread


def make_print_config(words: Callable[[], Sequence[str]]) -> Callable[[Any], None]:
    """Return the command `print_config`; `words` returns the words after the command, which select settings."""

    def print_config(_run: Any) -> None:
        """Print every setting with its value and meaning, and exit.

        Words choose: `print_config data model` prints the settings whose dotted names contain one of them, and
        `print_config changed` those that are not at their defaults. The name of a command prints the settings of that
        command, also if a setting has the same name.

        The origin of a value that is not the default is in brackets. Blue: changed from its default; green: added with
        --force; red: its type changed with --force.
        """
        is_terminal = getattr(sys.stdout, "isatty", bool)()
        colours = _COLOURS if is_terminal and "NO_COLOR" not in os.environ else dict.fromkeys(_COLOURS, "")
        columns = shutil.get_terminal_size().columns if is_terminal else None
        groups = _run.meta_info["origins"]
        origins = {entry: typed_name(group["origin"]) for group in groups for entry in group["entries"]}
        changes, rows = _run.config_modifications, in_order(_run.config, _run.ingredients)
        changed = {*origins, *changes.added, *changes.modified, *changes.typechanged}
        lines = format_config(narrowed(rows, words(), changed.__contains__), changes, colours, origins, columns)
        print("\n".join(lines) or "all of these settings are at their defaults")

    return print_config


def make_print_named_configs(experiment: sacred.Experiment) -> Callable[[], None]:
    """Return the command `print_named_configs`, which looks up the named configs of the experiment when it runs."""

    def print_named_configs() -> None:
        """Print the named configs, for `with NAME`, and exit."""
        named = dict(experiment.gather_named_configs())
        width = max(map(len, named), default=0)
        for name, config in named.items():
            print(f"{name:<{width}}  # {inspect.cleandoc(config.__doc__ or '').partition(chr(10))[0]}".rstrip(" #"))
        if not named:
            print("there are no named configs")

    return print_named_configs


def save_config(_run: Any, config_filename: str = "config.json") -> None:
    """Write the config to a file for `with FILE` (config_filename=NAME.json or NAME.yaml), and exit."""
    entries = named(_run.config)
    entries.pop("config_filename", None)
    write_config_file(entries, config_filename)
    logging.getLogger(__name__).info("saved the config to %s", config_filename)


def make_replay(main: Callable[[], Any]) -> Callable[[str], dict[str, Any] | None]:
    """Return the command `replay`; `main` runs the main function, whose training repeats the step of the bundle."""

    def replay(bundle: str) -> dict[str, Any] | None:
        """Repeat the step of a bundle (bundle=FOLDER) under anomaly detection, and name the first non-finite value."""
        try:
            with replaying(Path(bundle)):
                main()
        except Replayed as done:
            print(done.report)
            return None if done.finding is None else dict(done.finding)
        raise ConfigError("replay: the experiment ended without a training by loop.fit, so no step was taken")

    return replay


# ---------------------------------------------------------------------- the text of print_config

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
    training, and then the others. Within each, the order of the declaration holds, plain entries first.
    """
    own = [name for name, part in ingredients.items() if not getattr(part, "is_of_lab", False)]
    order = list(dict.fromkeys([*own, *_FIRST, *ingredients]))
    positions = {name: position for position, name in enumerate(order)}
    # A group of the experiment that is no ingredient is its own.
    return list(_rows(dict(sorted(config.items(), key=lambda item: positions.get(item[0], -1)))))


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
    """Return entries whose dotted names contain a word, with their groups; `CHANGED` leaves out defaults."""
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
    """Return the lines of `print_config`; `colours` are escape sequences, and docs are wrapped to `columns`."""
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


# ---------------------------------------------------------------------- replaying a step

# What was not finite, and where; the last file of a bundle to be written.
INCIDENT = "incident.json"

_bundle: contextvars.ContextVar[Path | None] = contextvars.ContextVar("bundle", default=None)


class Replayed(Exception):  # noqa: N818 - it is no error
    """The training has repeated the step, and ends here; `finding` is the cause of a non-finite step, else None."""

    def __init__(self, report: str, finding: Mapping[str, Any] | None) -> None:
        super().__init__(report)
        self.report = report
        self.finding = finding


def bundle_to_replay() -> Path | None:
    """Return the bundle whose step is to be repeated; None in an ordinary training."""
    return _bundle.get()


@contextlib.contextmanager
def replaying(bundle: Path) -> Iterator[None]:
    """Let the training in the block repeat the step of a bundle, and raise `Replayed`."""
    token = _bundle.set(bundle)
    try:
        yield
    finally:
        _bundle.reset(token)


def config_of_bundle(bundle: Any) -> str:
    """Return the path of the config file in a bundle, whose folder is as typed, or None if it was not."""
    expected = "a folder such as my_runs/3/checkpoints/nonfinite-000000120"
    if bundle is None:
        raise ConfigError(f"replay: got no bundle; write replay with bundle=FOLDER, {expected}")
    missing = [name for name in (CONFIG, INCIDENT) if not Path(str(bundle), name).is_file()]
    if missing:
        raise ConfigError(f"bundle: got {bundle!r}, which holds no {missing[0]}; expected {expected}")
    return str(Path(str(bundle), CONFIG))


# The lines that Sacred logs around the output of a command.
_FRAME = ("Running command '%s'", "Started", "Completed after %s", "Failed after %s!")


class Unframed(logging.LoggerAdapter):
    """Sacred's logger of a command that only prints: its output shows without the lines around it."""

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        super().log(logging.DEBUG if msg in _FRAME else level, msg, *args, **kwargs)
