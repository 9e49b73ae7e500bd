"""`print_config`, `print_named_configs` and `save_config`, instead of Sacred's; and `replay`."""

from __future__ import annotations

import inspect
import logging
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import sacred

from sacristan.configs.files import typed_name
from sacristan.experiments.running.config_text import format_config, in_order, narrowed
from sacristan.experiments.running.replaying import Replayed, replaying
from sacristan.ingredients.config.files import write_config_file
from sacristan.ingredients.errors import ConfigError
from sacristan.observers.record.object_names import named

__all__ = ["lacking", "make_print_config", "make_print_named_configs", "make_replay", "save_config", "unread_tools"]

_COLOURS = {"changed": "\033[34m", "type": "\033[31m", "added": "\033[32m", "doc": "\033[2m"}


def lacking(experiment: sacred.Experiment, command: Callable | None) -> list[str]:
    """Return the names of the ingredients that a command (None needs none) requires and an experiment lacks."""
    needs = getattr(command, "needs", ())
    own = {ingredient.path for ingredient, _ in experiment.traverse_ingredients()} if needs else ()
    return [needed for needed in needs if needed not in own]


def unread_tools(experiment: sacred.Experiment, command: str) -> dict[str, list[str]]:
    """Return the tools whose settings a command does not read, each with the commands that do.

    A tool that no command is known to read is not among them: the experiment's own functions may read it.
    """
    known = list(experiment.gather_commands())
    found: dict[str, list[str]] = {}
    for tool in [part for part, _ in experiment.traverse_ingredients() if getattr(part, "is_tool", False)]:
        own = f"{tool.path}."
        readers = [name for name, each in known if name.startswith(own) or tool.path in getattr(each, "needs", ())]
        if readers and command not in readers:
            found[tool.path] = readers
    return found


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
