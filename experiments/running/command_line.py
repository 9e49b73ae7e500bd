"""The words of the command line, checked before Sacred reads them."""

from __future__ import annotations

import itertools
import logging
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sacred.commandline_options import CLIOption
from sacred.utils import iter_prefixes

from sacristan.configs.nearest import nearest, suggestion
from sacristan.ingredients.config.entry_types import check_keys, literal
from sacristan.ingredients.errors import ConfigError

_log = logging.getLogger(__name__)

# How many words may follow a command: names of another command, and for print_config of settings as well.
_MAX_FOLLOWING = {"help": 1, "save_config": 1, "print_config": math.inf}


def check_command_line(argv: str | Sequence[str], options: Sequence[CLIOption]) -> None:
    """Reject invalid options, a setting before `with`, a second command, and settings that contradict each other."""
    words = _words(argv)
    plain_words = list(_plain_words(iter(words[1:]), options))
    _check_assignments(words)
    _check_command(plain_words)


def split_shown_words(argv: str | Sequence[str], options: Sequence[CLIOption]) -> tuple[str | Sequence[str], list[str]]:
    """Split off the words after print_config or save_config that select settings; call `check_command_line` first."""
    words = _words(argv)
    command, *shown = _before_with(list(_plain_words(iter(words[1:]), options))) or [""]
    if command not in ("print_config", "save_config") or not shown:
        return argv, []
    position = words.index(command)
    for word in shown:
        position = words.index(word, position + 1)
        del words[position]
        position -= 1
    return words, shown


def beat_interval_s(options: Mapping[str, Any]) -> float | None:
    """Return the seconds between heartbeats from the options by long flag: 0 for no heartbeats, None if not set."""
    value = options.get("--beat-interval")
    if value is None:
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ConfigError(f"--beat-interval: got {value!r}, expected seconds, more than 0, or 0 for no heartbeats")
    return seconds


def _words(argv: str | Sequence[str]) -> list[str]:
    return shlex.split(argv) if isinstance(argv, str) else list(argv)


def _before_with(words: Sequence[str]) -> list[str]:
    return list(itertools.takewhile(lambda word: word != "with", words))


def _plain_words(words: Iterator[str], options: Sequence[CLIOption]) -> Iterator[str]:
    """Yield the words that are neither options nor their values; reject invalid options on the way."""
    by_flag = {flag: option for option in options for flag in option.get_flags()}
    for word in words:
        if not word.startswith("-"):
            yield word
        elif word not in ("-", "--"):
            _check_option(word, words, by_flag)


def _check_option(word: str, rest: Iterator[str], by_flag: Mapping[str, CLIOption]) -> None:
    """Check one option, and take its value from the rest of the words if it is not in the same word."""
    is_long = word.startswith("--")
    name, equals, value = word.partition("=") if is_long else (word[:2], "", word[2:])
    flag = _flag_of(name, list(by_flag))
    option = by_flag[flag]
    if not option.arg:
        if equals:
            raise ConfigError(f"{flag}: got the value {value!r}, but it takes none; write {flag}")
        return
    argument = value if equals + value else next(rest, None)
    if argument is None:
        raise ConfigError(f"{flag}: got no value; write {flag}{'=' if is_long else ' '}VALUE")
    accepts, expected = _VALUES.get(option.get_flag(), (lambda text: True, "any text"))
    if not accepts(argument):
        raise ConfigError(f"{flag}: got {argument!r}, expected {expected}")


def _flag_of(name: str, valid: list[str]) -> str:
    """Return the flag of a name, which may be the unique start of a long flag, as in other programs."""
    flags = [name] if name in valid else [flag for flag in valid if name.startswith("--") and flag.startswith(name)]
    if len(flags) != 1:
        setting = (
            f"; a setting is written with {name[2:]}=VALUE" if all(map(str.isidentifier, name[2:].split("."))) else ""
        )
        hint = suggestion(name, valid, f"-h lists them{setting}")
        raise ConfigError(f"{name}: there is no such option; {hint}")
    return flags[0]


def _check_command(words: Sequence[str]) -> None:
    """Reject words without options that are not `[COMMAND] [with UPDATE...]`; print_config takes any number."""
    before = _before_with(words)
    if list(words[len(before) :]) == ["with"]:
        raise ConfigError("with: got nothing after it, expected settings or named configs; write with NAME=VALUE")
    if len(before) <= 1 + _MAX_FOLLOWING.get(before[0] if before else "", 0):
        return
    mistyped = next((word for word in before if nearest(word, ["with"])), None)
    if mistyped is not None and len(before) == len(words):
        raise ConfigError(f"{mistyped}: there is no such command; did you mean with?")
    raise ConfigError(
        f"{before[1]}: got a second word after {before[0]}, expected one command; write settings and named configs "
        f"after it: {before[0]} with {before[1]}"
    )


def _check_assignments(words: Sequence[str]) -> None:
    start = words.index("with") if "with" in words else len(words)
    for before, word in itertools.pairwise(words[:start]):
        if _is_assignment(word) and not before.startswith("-"):
            if nearest(before, ["with"]):
                raise ConfigError(f"{before}: there is no such command; did you mean with?")
            raise ConfigError(f"{word}: got a setting without `with` before it; write with {word}")
    settings = settings_in(words)
    _check_groups(list(settings))
    for word in words[start + 1 :]:
        name, _, text = (part.strip() for part in word.partition("="))
        if _is_assignment(word) and settings[name] != text:
            _log.warning("%s: got %s and then %s; the last one counts", name, text, settings[name])
    for name, text in settings.items():
        check_keys(name, literal(text))


def settings_in(argv: str | Sequence[str]) -> dict[str, str]:
    """Return the settings after `with` as typed, by name; the last one wins."""
    words = _words(argv)
    start = words.index("with") if "with" in words else len(words)
    pairs = (word.partition("=") for word in words[start + 1 :] if _is_assignment(word))
    return {name.strip(): text.strip() for name, _, text in pairs}


def _check_groups(names: Sequence[str]) -> None:
    """Reject a name that is used both as a value and as a group of another, such as `lr` and `lr.x`."""
    for name in names:
        for prefix in list(iter_prefixes(name))[:-1]:
            if prefix in names:
                raise ConfigError(
                    f"{prefix} and {name}: got both, but {prefix} cannot be one value and a group of entries; "
                    "give one of them"
                )


def _is_assignment(word: str) -> bool:
    return "=" in word and not word.startswith("-")


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


# Sacred's options that do not accept any text: a check of the text, and what is expected.
_VALUES: dict[str, tuple[Callable[[str], bool], str]] = {
    "--beat-interval": (lambda text: _is_number(text) and 0 < float(text) < math.inf, "seconds, more than 0"),
    "--capture": (lambda text: text in ("no", "sys", "fd"), "one of no, sys, fd"),
    # It names a folder, and `latest` is how `runs` calls the newest run.
    "--id": (
        lambda text: Path(text).name == text and text not in ("..", "latest"),
        "the name of a folder, and not latest",
    ),
    "--loglevel": (
        lambda text: text.removeprefix("-").isdecimal() or text in logging.getLevelNamesMapping(),
        "one of DEBUG, INFO, WARNING, ERROR, CRITICAL, or a number",
    ),
    "--priority": (_is_number, "a number"),
}
