"""Compare a script of stock Sacred with itself under this lab: each command line in two processes, nothing recorded.

for line in check_lines(Path("train.py"), command_lines("with lr=0.1", Path("train.py"))):
    print(line.text, line.differences)
"""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

from sacristan import configs
from sacristan.observers.record.redaction import redact
from sacristan.runs.errors import LaunchError
from sacristan.runs.rerun.launching import Launch, end_text, started

_PROBE = Path(configs.__file__).parents[1] / "experiments" / "probe.py"


@dataclasses.dataclass(frozen=True)
class CommandLine:
    """A command line of a script: the words after it, and variables before it."""

    text: str
    words: tuple[str, ...]
    variables: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Side:
    """How a command line ended under one of the two."""

    is_accepted: Annotated[bool, "Whether its config could be computed, and the run, if it was started, completed."]
    error: Annotated[str | None, "The error; null without one."]
    exit_code: Annotated[int, "The exit code, negative for the signal that ended the process."]


@dataclasses.dataclass(frozen=True)
class Difference:
    """One difference between the two."""

    kind: Annotated[str, "`accepted`, `config`, `result`, `runs` (their number) or `exit code`."]
    name: Annotated[str, "The name of the setting; empty for the other kinds."]
    sacred: Annotated[
        str | None,
        "The value or error under stock Sacred; null if it lacks the setting, or accepts the line.",
    ]
    here: Annotated[str | None, "The same under this lab."]


@dataclasses.dataclass(frozen=True)
class CheckedLine:
    """A command line under both."""

    text: Annotated[str, "The words after the script; `print_config` for the script alone."]
    sacred: Annotated[Side, "How it ended under stock Sacred."]
    here: Annotated[Side, "How it ended under this lab."]
    differences: Annotated[list[Difference], "What differs; empty if nothing does."]
    varying: Annotated[
        list[str],
        "Settings, or `result`, that differ between two runs of stock Sacred, too, and are not compared.",
    ]


def command_lines(text: str, script: Path) -> list[CommandLine]:
    """Return the command lines of a file, one a line; `#` begins a comment, and a backslash continues a line."""
    lines = []
    for number, line in enumerate(text.replace("\\\n", " ").splitlines(), 1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise LaunchError(f"command line {number} cannot be read ({error}): {line.strip()}") from None
        if words:
            lines.append(_command_line(words, script, number))
    if not lines:
        raise LaunchError("got no command line, expected one a line, such as: with lr=0.1")
    return lines


def _command_line(words: Sequence[str], script: Path, number: int) -> CommandLine:
    position = next((position for position, word in enumerate(words) if Path(word).name == script.name), None)
    if position is None:
        other = next((word for word in words[:3] if word.endswith(".py")), None)
        if other is not None:
            raise LaunchError(f"command line {number}: got one of {other}, expected one of {script.name}")
        return CommandLine(shlex.join(words), tuple(words), {})
    before = [word.partition("=") for word in words[:position]]
    variables = {name: value for name, equals, value in before if equals and name.isidentifier()}
    return CommandLine(shlex.join(words[position + 1 :]), tuple(words[position + 1 :]), variables)


def check_lines(script: Path, lines: Sequence[CommandLine], *, is_run: bool = False) -> Iterator[CheckedLine]:
    """Yield the script alone, and each command line, under both; only configs are computed unless `is_run`."""
    if not script.is_file() if script.suffix == ".py" else not _is_module(script):
        raise LaunchError(
            f"{script}: expected the Python file that runs the experiment, such as train.py, or its module"
        )
    alone, accepts_any = CommandLine("print_config", (), {}), False
    for line in (alone, *lines):
        extent = "run" if is_run and line is not alone else "config"
        (sacred, stock), (here, lab) = (_probed(side, extent, script, line) for side in ("sacred", "sacristan"))
        if line is alone and not (stock["runs"] or lab["runs"] or (lines and sacred.error)):
            raise LaunchError(f"{script}: {_why_no_run(sacred, stock['num_experiments'])}")
        accepts_any |= sacred.is_accepted or here.is_accepted
        differences = {(each.kind, each.name): each for each in _differences((sacred, stock), (here, lab))}
        varying: set[tuple[str, str]] = set()
        if differences:
            again = "config" if all(kind == "config" for kind, _ in differences) else extent
            repeated = _differences((sacred, stock), _probed("sacred", again, script, line))
            varying = {(each.kind, each.name) for each in repeated} & differences.keys()
        different = [each for key, each in differences.items() if key not in varying]
        yield CheckedLine(line.text, sacred, here, different, sorted(name or kind for kind, name in varying))
    if not accepts_any:
        raise LaunchError(f"{script}: neither accepts any of these command lines; {sacred.error}")


def _is_module(script: Path) -> bool:
    return not script.exists() and all(part.isidentifier() for part in str(script).split("."))


def _why_no_run(sacred: Side, num_experiments: int) -> str:
    if sacred.error is not None:
        return (
            f"it ends with an error under stock Sacred, too: {sacred.error}; if it needs arguments, give whole command "
            "lines with --commands"
        )
    if num_experiments:
        return "it creates an experiment and does not run it; name the script that does"
    return "it creates no experiment of Sacred; name the script that does"


def _probed(side: str, extent: str, script: Path, line: CommandLine) -> tuple[Side, dict[str, Any]]:
    """Run a command line under one of the two; return how it ended, and what the probe has noted."""
    with (
        tempfile.TemporaryDirectory(prefix="sacristan-check-") as folder,
        (Path(folder) / "output").open("wb") as output,
    ):
        outcome = Path(folder) / "outcome"
        command = (sys.executable, str(_PROBE), side, extent, str(outcome), str(script), *line.words)
        with started(
            Launch(command, Path(), {"PYTHONHASHSEED": "0", **line.variables}, ()), output.fileno()
        ) as process:
            code = process.wait()
        noted: dict[str, Any] = {"num_experiments": 0, "runs": [], "error": None}
        if outcome.is_file():
            noted = json.loads(outcome.read_text(encoding="ascii"))
        printed = (Path(folder) / "output").read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((text.strip() for text in reversed(printed) if text.strip()), end_text(code))
    error = noted["error"] or (None if code == 0 else last.removeprefix("error: "))
    return Side(error is None, None if error is None else redact(error), code), noted


def _differences(sacred: tuple[Side, dict[str, Any]], here: tuple[Side, dict[str, Any]]) -> list[Difference]:
    (stock, noted), (lab, noted_here) = sacred, here
    if stock.is_accepted != lab.is_accepted:
        return [Difference("accepted", "", stock.error, lab.error)]
    mismatches = []
    if stock.is_accepted:
        for one, other in zip_longest(noted["runs"], noted_here["runs"]):
            if one is None or other is None:
                numbers = (str(len(each["runs"])) for each in (noted, noted_here))
                mismatches.append(Difference("runs", "", *numbers))
                break
            old, new = one["config"], other["config"]
            names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
            mismatches += [Difference("config", name, _text(old.get(name)), _text(new.get(name))) for name in names]
            if one["result"] != other["result"]:
                mismatches.append(Difference("result", "", _text(one["result"]), _text(other["result"])))
    if stock.exit_code != lab.exit_code:
        mismatches.append(Difference("exit code", "", str(stock.exit_code), str(lab.exit_code)))
    return mismatches


def _text(value: str | None) -> str | None:
    return None if value is None else redact(value)
