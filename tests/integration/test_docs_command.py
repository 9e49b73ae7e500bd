"""`sacristan docs`: in a checkout, built or not, and after installation from a wheel."""

from __future__ import annotations

import os
import sys
import sysconfig

import pytest

from sacristan.__main__ import main
from sacristan.runs.commands import tools
from tests.labs import copy_lab
from tests.processes import imported, run
from tests.terminals import run_in_terminal

PAGES = {
    "index": "# Sacristan",
    "sweeping": "# Sweeping: many runs",
    "sweep_specs": "# The spec of a sweep",
    "reproducing": "# Reproducing and resuming\n`sacristan reproduce`, forks",
    "exactness": "# Seeds and exactness",
    "howto/log_an_image": "# How do I log an image?",
    "howto/resume_a_run": "# Resume a run",
    "howto/set_the_seed": "# Fix the randomness",
    "howto/slurm": "# Resume on Slurm",
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    copy_lab(folder)
    with imported(folder):
        yield folder


@pytest.fixture
def pages(lab):
    """Write the pages of a checkout."""
    for name, text in PAGES.items():
        (lab / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (lab / "docs" / f"{name}.md").write_text(text)
    return lab / "docs"


def asked(lab, *words):
    return run([sys.executable, "-m", "sacristan", "docs", *words], cwd=lab, capture_output=True, text=True)


@pytest.mark.slow
def test_docs_outside_of_a_terminal_prints_the_path(lab, pages, tmp_path):
    assert asked(lab).stdout == f"{pages}\n"


@pytest.mark.parametrize(
    ("words", "page"),
    [
        *(
            ("sweep", "sweeping"),
            ("spec sweep", "sweep_specs"),
            ("image", "howto/log_an_image"),
            ("forks", "reproducing"),
        ),
        *(("resume", "howto/resume_a_run"), ("seed", "howto/set_the_seed")),
    ],
)
def test_docs_with_words_prints_the_page_that_fits(lab, pages, words, page):
    assert asked(lab, *words.split()).stdout == f"{pages / page}.md\n"


def test_docs_with_a_mistyped_word_names_the_nearest(lab, pages):
    done = asked(lab, "reproducign")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: reproducign: got words that are in no page; did you mean reproducing?\n"


def test_docs_on_a_terminal_opens_the_built_page_in_the_browser(lab, pages, tmp_path):
    built = lab / "build" / "docs" / "docs"
    built.mkdir(parents=True)
    (built / "sweeping.html").touch()
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    command = [sys.executable, "-m", "sacristan", "docs", "sweeping"]
    assert run_in_terminal(command, lab, {**os.environ, "BROWSER": str(browser)}) == (0, f"{built}/sweeping.html\n")
    assert (tmp_path / "opened").read_text() == f"{(built / 'sweeping.html').as_uri()}\n"
    # A page that is newer than the build is not built yet.
    assert asked(lab, "image").stdout == f"{pages}/howto/log_an_image.md\n"


def test_docs_of_a_wheel_are_below_the_prefix(lab, pages, tmp_path, monkeypatch, capsys):
    installed = tmp_path / "share" / "sacristan" / "docs"
    installed.parent.mkdir(parents=True)
    pages.rename(installed)
    monkeypatch.setattr(tools, "_LAB", lab)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert main(["docs", "sweep"]) == 0
    assert capsys.readouterr().out == f"{installed}/sweeping.md\n"
    installed.rename(tmp_path / "elsewhere")
    done = asked(lab, "sweep")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: got no documentation in ")
