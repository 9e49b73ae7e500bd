"""The words of the command line, checked before Sacred reads them."""

from __future__ import annotations

import itertools
import logging
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sacred.commandline_options import CLIOption
from sacred.utils import iter_prefixes

from ingredients.config.nearest import nearest
from ingredients.errors import ConfigError

__all__ = ["beat_interval_s", "check_command_line", "split_shown_command"]

# Commands that may name another one, whose settings they show.
_SHOWS_SETTINGS = ("print_config", "save_config")


def check_command_line(argv: str | Sequence[str], options: Sequence[CLIOption]) -> None:
    """Refuse options that do not exist, lack their value or cannot take it, and settings that make no sense.

    Args:
        argv: The words, the program first; or all in one string.
        options: The options that there are.

    Raises:
        ConfigError: If there is one; or if a setting stands before `with`, or one makes a plain value of what another
            one takes for a group, such as `lr=1 lr.x=2`; or if there is more than one command, or nothing after `with`.
    """
    words = shlex.split(argv) if isinstance(argv, str) else list(argv)
    plain_words = list(_check_options(iter(words[1:]), options))
    _check_assignments(words)
    _check_command(plain_words)


def split_shown_command(
    argv: str | Sequence[str], options: Sequence[CLIOption]
) -> tuple[str | Sequence[str], str | None]:
    """Return the command line without the command that stands behind print_config or save_config, and that command.

    Args:
        argv: Words that `check_command_line` has let pass.
        options: The options that there are.
    """
    words = shlex.split(argv) if isinstance(argv, str) else list(argv)
    plain_words = _check_options(iter(words[1:]), options)
    before = list(itertools.takewhile(lambda word: word != "with", plain_words))
    if len(before) != 2 or before[0] not in _SHOWS_SETTINGS:
        return argv, None
    words.pop(words.index(before[1], words.index(before[0]) + 1))
    return words, before[1]


def beat_interval_s(options: Mapping[str, Any]) -> float | None:
    """Return the seconds between two heartbeats that the options of a call ask for; 0 is none at all, None not given.

    Raises:
        ConfigError: If that is no number of seconds.
    """
    given = options.get("--beat-interval")
    if given is None:
        return None
    try:
        seconds = float(given)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ConfigError(f"--beat-interval: got {given!r}, expected seconds, more than 0, or 0 for no heartbeats")
    return seconds


def _check_options(words: Iterator[str], options: Sequence[CLIOption]) -> Iterator[str]:
    """Refuse options that make no sense, and yield the words that are neither options nor their values."""
    takes_value = {flag: bool(option.arg) for option in options for flag in option.get_flags()}
    long = {flag: option.get_flag() for option in options for flag in option.get_flags()}
    for word in words:
        if not word.startswith("-"):
            yield word
        if not word.startswith("-") or word in ("-", "--"):
            continue
        name, equals, rest = word.partition("=") if word.startswith("--") else (word[:2], "", word[2:])
        # As in other programs, the beginning of a long name is enough.
        meant = {flag for flag in takes_value if flag == name} or {
            flag for flag in takes_value if name.startswith("--") and flag.startswith(name)
        }
        if len(meant) != 1:
            near = nearest(name, list(takes_value))
            hint = f"did you mean {near}?" if near else "-h lists them"
            raise ConfigError(f"{name}: there is no such option; {hint}")
        flag = meant.pop()
        if takes_value[flag]:
            value = rest if equals or rest else next(words, None)
            if value is None:
                raise ConfigError(f"{flag}: got no value; write {flag}{'=' if flag.startswith('--') else ' '}VALUE")
            _check_value(flag, long[flag], value)
        elif equals:
            raise ConfigError(f"{flag}: got the value {rest!r}, but it takes none; write {flag}")


def _check_command(words: Sequence[str]) -> None:
    """Refuse words, options left out, that are not `[COMMAND] [with UPDATE...]`.

    A second command may stand behind `help`, `print_config` and `save_config`.
    """
    before = list(itertools.takewhile(lambda word: word != "with", words))
    if words and words[-1] == "with" and len(before) == len(words) - 1:
        raise ConfigError("with: got nothing after it, expected settings or named configs; write with NAME=VALUE")
    if len(before) <= (2 if before[:1] and before[0] in ("help", *_SHOWS_SETTINGS) else 1):
        return
    mistyped = next((word for word in before if nearest(word, ["with"])), None)
    if mistyped is not None and len(before) == len(words):
        raise ConfigError(f"{mistyped}: there is no such command; did you mean with?")
    raise ConfigError(
        f"{before[1]}: got a second word after {before[0]}, expected one command; write settings and named configs "
        f"behind it: {before[0]} with {before[1]}"
    )


def _check_value(flag: str, long: str, value: str) -> None:
    takes, expected = _VALUES.get(long, (None, ""))
    if takes is not None and not takes(value):
        raise ConfigError(f"{flag}: got {value!r}, expected {expected}")


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


# Sacred's options that take not just any text, by what they take.
_VALUES: dict[str, tuple[Callable[[str], bool], str]] = {
    "--beat-interval": (lambda text: _is_number(text) and 0 < float(text) < math.inf, "seconds, more than 0"),
    "--capture": (lambda text: text in ("no", "sys", "fd"), "one of no, sys, fd"),
    "--loglevel": (
        lambda text: text.removeprefix("-").isdecimal() or text in logging.getLevelNamesMapping(),
        "one of DEBUG, INFO, WARNING, ERROR, CRITICAL, or a number",
    ),
    "--priority": (_is_number, "a number"),
}


def _check_assignments(words: Sequence[str]) -> None:
    start = words.index("with") if "with" in words else len(words)
    for before, word in itertools.pairwise(words[:start]):
        if "=" in word and not word.startswith("-") and not before.startswith("-"):
            raise ConfigError(f"{word}: got a setting without `with` before it; write with {word}")
    words = words[start + 1 :]
    names = [word.partition("=")[0].strip() for word in words if "=" in word and not word.startswith("-")]
    for name in names:
        for prefix in list(iter_prefixes(name))[:-1]:
            if prefix in names:
                raise ConfigError(
                    f"{prefix} and {name}: got both, but {prefix} cannot be one value and a group of entries; "
                    "give one of them"
                )
