"""Next commands, suggested after a run in a terminal."""

from __future__ import annotations

import os
import re
import shlex
import sys

import pytest

from tests.integration.conftest import HEAD
from tests.processes import run
from tests.terminals import run_in_terminal

# Runs one experiment several times. A line of `=` and the case precedes the output of each.
CASES = """
import contextlib

@ex.main
def main(_run):
    if "weights" in cases[case]:
        states = _run.folder / "checkpoints"
        states.mkdir()
        (states / "best.pt").touch()

@ex.command
def evaluate():
    pass

cases = {
    "usual": [], "with weights": ["weights"], "elsewhere": ["-F", "other runs", "weights"], "in the store": [],
    "evaluation": ["evaluate"], "unobserved": ["-u"], "CI": [], "pipe": [], "child": [], "as at first": [],
    "quiet": ["-l", "WARNING"],  # the last, because the level stays
}
for case, words in cases.items():
    print("=", case, flush=True)
    variables = {"CI": {"CI": "true"}, "child": {"SACRISTAN_PARENT": "0" * 32}, "in the store": {
        "SACRISTAN_STORE": os.path.abspath("my_runs")}}.get(case, {})
    os.environ.update(variables)
    with contextlib.ExitStack() as stack:
        if case == "pipe":
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open("out.txt", "w"))))
        ex.run_commandline(["mine.py", *(word for word in words if word != "weights")])
    for name in variables:
        del os.environ[name]
"""


@pytest.fixture(scope="module")
def shown(request, tmp_path_factory):
    """Return what each case of `CASES` shows after `Recorded in`."""
    folder = tmp_path_factory.mktemp("next")
    (folder / "mine.py").write_text(HEAD.format(root=str(request.config.rootpath)) + CASES)
    env = {name: value for name, value in os.environ.items() if name not in ("CI", "SACRISTAN_STORE")}
    env["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), env["PATH"]])  # noqa: PTH120
    code, text = run_in_terminal([sys.executable, "mine.py"], folder, env)
    assert code == 0, text
    cases = re.split(r"^= (.*)$", text, flags=re.MULTILINE)[1:]
    return dict(zip(cases[::2], [case.partition("Next, ")[2].splitlines() for case in cases[1::2]], strict=True))


def test_run_in_a_terminal_ends_with_what_to_type_next(shown):
    assert shown["usual"] == [
        "look at the run or open the board:",
        "  sacristan show 1",
        "  sacristan board",
    ]
    assert shown["with weights"][-1] == ("  python mine.py evaluate with my_runs/2/config.json checkpoint.path=run:2")


def test_run_in_another_folder_ends_with_commands_that_name_it(shown):
    assert shown["elsewhere"] == [
        "look at the run, open the board or evaluate its best weights:",
        "  sacristan --store 'other runs' show 1",
        "  sacristan --store 'other runs' board",
        "  python mine.py evaluate with 'other runs/1/config.json' 'checkpoint.path=other runs/1/checkpoints/best.pt'",
    ]
    assert shown["in the store"][1].startswith("  sacristan show ")


@pytest.mark.parametrize("case", ["evaluation", "quiet", "unobserved", "CI", "pipe", "child"])
def test_run_that_nobody_watches_shows_no_next_steps(shown, case):
    assert shown[case] == []
    assert len(shown["as at first"]) == 3


FAILING = """
@ex.automain
def main(_run):
    states = _run.folder / "checkpoints"
    states.mkdir()
    (states / "last.pt").touch()
    raise ValueError("a bug")
"""


def test_failed_run_with_a_state_says_how_to_resume(request, tmp_path):
    (tmp_path / "mine.py").write_text(HEAD.format(root=str(request.config.rootpath)) + FAILING)
    done = run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    *_, reason, _, last = done.stderr.splitlines()
    assert reason == "ValueError: a bug"
    assert last.startswith("a state of the training is saved; resume with: ")
    assert shlex.split(last)[-3:] == ["sacristan", "resume", "1"]
