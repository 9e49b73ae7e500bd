"""The terminal of a run that fails."""

from __future__ import annotations

import sys

import pytest

from sacristan.experiments.running.endings import format_failure
from sacristan.ingredients.config.entry_types import conform
from tests.processes import PIPE, run

SCRIPT = """
from sacristan.experiments import Experiment
from sacristan.ingredients import Ingredient
from sacred.utils import InvalidConfigError

part = Ingredient("part")
part.add_config(level=0)
ex = Experiment("failing", [part], record_to=None)


@part.capture
def divide(level):
    return 1 / level


@ex.command
def unfit():
    raise InvalidConfigError("no such level", conflicting_configs=("part.level",))


@ex.automain
def main():
    try:
        divide()
    except ZeroDivisionError as error:
        raise ValueError("no result") from error
"""


@pytest.fixture
def failing(tmp_path):
    """Return what runs a script that fails, and returns what it says beside the log."""
    (tmp_path / "failing.py").write_text(SCRIPT)

    def failing(*words):
        done = run([sys.executable, "failing.py", *words], cwd=tmp_path, stdout=PIPE, stderr=PIPE, text=True)
        assert done.returncode == 1
        lines = done.stderr.splitlines()
        return [line for line in lines if not line.startswith(("INFO", "WARNING", "ERROR"))]

    return failing


def test_traceback_shows_the_lines_of_the_user_alone(failing):
    said = failing()
    files = [line.split('"')[1].rpartition("/")[2] for line in said if line.startswith("  File ")]
    assert files == ["failing.py"] * 3
    assert said[0] == "Traceback (most recent call last):"
    assert "ZeroDivisionError: division by zero" in said
    assert said[-2] == "ValueError: no result"
    assert said[-1].endswith(" lines of the lab and of Sacred left out; --debug shows them)")


def test_traceback_with_debug_shows_all(failing):
    said = "\n".join(failing("--debug"))
    assert "running/__init__.py" in said
    assert "captured_function.py" in said
    assert "left out" not in said


def test_traceback_of_an_invalid_config_has_its_settings(failing):
    said = failing("unfit")
    assert "  part.level=0" in said
    assert not any("running/__init__.py" in line for line in said)


def test_failure_of_the_lab_itself_keeps_the_line_that_raised():
    with pytest.raises(TypeError) as failed:
        conform("x", list[int])
    said = format_failure(failed.value)
    assert "entry_types.py" in said
    assert "(1 line of the lab and of Sacred left out; --debug shows them)" in said


def test_failure_without_lines_of_the_lab_is_shown_whole():
    with pytest.raises(ZeroDivisionError) as failed:
        1 / 0  # noqa: B018
    assert "left out" not in format_failure(failed.value)


def test_failure_of_several_at_once_hides_lines_in_each():
    try:
        try:
            conform("x", list[int])
        except TypeError as error:
            raise ExceptionGroup("both", [error, ValueError("other")]) from None
    except ExceptionGroup as group:
        said = format_failure(group)
    assert "ValueError: other" in said
    assert "left out" in said


def test_torch_logs_no_info_however_early_a_run_is_interrupted(tmp_path):
    # Ctrl-C while torch is being imported left its loggers at Sacred's level, for what it says at the exit.
    (tmp_path / "early.py").write_text(
        "import logging, sys\n"
        "from sacristan.experiments import Experiment\n"
        "ex = Experiment('early', record_to=None)\n"
        "@ex.automain\n"
        "def main():\n"
        "    assert 'torch' not in sys.modules\n"
        "    logging.getLogger('torch._subclasses.fake_tensor').info('cache stats')\n"
        "    logging.getLogger('torch._subclasses.fake_tensor').warning('worth knowing')\n"
    )
    done = run([sys.executable, "early.py"], cwd=tmp_path, stderr=PIPE, text=True, cold=True)
    assert done.returncode == 0, done.stderr
    assert "cache stats" not in done.stderr
    assert "worth knowing" in done.stderr
