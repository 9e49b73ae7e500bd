"""`print_config`, `print_named_configs` and `save_config`, instead of Sacred's; and `replay`."""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import sacred
from sacred.utils import PATHCHANGE, iterate_flattened_separately

from experiments.running.replaying import Replayed, replaying
from ingredients.config.files import write_config_file
from ingredients.errors import ConfigError
from observers.record.object_names import named, object_name

__all__ = ["lacking", "make_print_named_configs", "make_replay", "print_config", "save_config", "unread_tools"]

_COLOURS = {"changed": "\033[34m", "type": "\033[31m", "added": "\033[32m", "doc": "\033[2m"}


def lacking(experiment: sacred.Experiment, command: Callable | None) -> list[str]:
    """Return the names of the ingredients that a command needs and an experiment lacks.

    Args:
        experiment: The experiment.
        command: The captured function of the command; None for no command, which needs none.
    """
    own = [ingredient.path for ingredient, _ in experiment.traverse_ingredients()]
    return [needed for needed in getattr(command, "needs", ()) if needed not in own]


def unread_tools(experiment: sacred.Experiment, command: str) -> dict[str, list[str]]:
    """Return the tools whose settings a command does not read, each with the commands that do.

    A tool that no command is known to read is not among them: the experiment's own functions may read it.

    Args:
        experiment: The experiment.
        command: Dotted name of the command.
    """
    known = list(experiment.gather_commands())
    found: dict[str, list[str]] = {}
    for tool in [part for part, _ in experiment.traverse_ingredients() if getattr(part, "is_tool", False)]:
        own = f"{tool.path}."
        readers = [name for name, each in known if name.startswith(own) or tool.path in getattr(each, "needs", ())]
        if readers and command not in readers:
            found[tool.path] = readers
    return found


def print_config(_run: Any) -> None:
    """Print every setting with its value and meaning, and exit; `print_config COMMAND` prints those of a command.

    The origin of a value that is not the default is in brackets. Blue: changed from its default; green: added with
    --force; red: its type changed with --force.
    """
    is_coloured = getattr(sys.stdout, "isatty", bool)() and "NO_COLOR" not in os.environ
    colours = _COLOURS if is_coloured else dict.fromkeys(_COLOURS, "")
    origins = {entry: group["origin"] for group in _run.meta_info["origins"] for entry in group["entries"]}
    print("\n".join(format_config(_run.config, _run.config_modifications, colours, origins)))


def format_config(
    config: Mapping[str, Any], changes: Any, colours: dict[str, str], origins: Mapping[str, str] = {}
) -> list[str]:
    """Return the lines of `print_config`.

    Args:
        config: The whole config.
        changes: Sacred's summary of the entries that were added, modified and documented.
        colours: Escape sequences by kind; empty strings for none.
        origins: Origins of the entries that are not at their defaults, by dotted name.
    """
    rows = [(path, _entry(path, value)) for path, value in iterate_flattened_separately(config)]
    width = min(44, max((len(text) for _, text in rows), default=0))
    end = "\033[0m" if colours["doc"] else ""
    lines = []
    for path, text in rows:
        kind = _kind_of_change(path, changes)
        shown = f"{colours[kind]}{text}{end}" if kind else text
        origin = f"[{origins[path]}]" if path in origins else ""
        doc = " ".join(filter(None, (origin, changes.docs.get(path, ""))))
        padding = " " * max(2, width + 2 - len(text))
        lines.append(f"{shown}{padding}{colours['doc']}# {doc}{end}" if doc else shown)
    return lines


def _entry(path: str, value: Any) -> str:
    key = "  " * path.count(".") + path.rpartition(".")[2]
    return f"{key}:" if value is PATHCHANGE else f"{key} = {_shown(value)}"


def _kind_of_change(path: str, changes: Any) -> str:
    """Return the key in `_COLOURS` for an entry; empty for one at its default."""
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


def make_print_named_configs(experiment: sacred.Experiment) -> Callable[[], None]:
    """Return the command `print_named_configs` of an experiment.

    Args:
        experiment: The experiment, whose named configs are looked up when the command runs.
    """

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
    """Return the command `replay` of an experiment.

    Args:
        main: Function that runs the experiment's main function, whose training then repeats the step of the bundle.
    """

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
