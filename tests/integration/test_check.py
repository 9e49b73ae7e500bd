"""`sacristan check`: scripts of stock Sacred, compared with themselves under the lab."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from sacristan.__main__ import main
from tests.documents import checked
from tests.processes import PIPE, Process

SCRIPT = """
import json
import os
import sys

from sacred import Experiment, Ingredient, SETTINGS
from sacred.observers import FileStorageObserver, MongoObserver, TinyDbObserver

data = Ingredient("data")
data.add_config(size=3)
ex = Experiment("old", ingredients=[data])
ex.observers += [FileStorageObserver("kept"), MongoObserver("mongodb://127.0.0.1:1/"), TinyDbObserver("tiny")]

@ex.config
def config():
    lr = 0.1
    epochs = 3
    model = {"depth": 2}
    if epochs > 100:
        import math
    started = f"run-{os.getpid()}"

@ex.named_config
def small():
    '''Fewer.'''
    epochs = 1

@ex.command
def describe(_config):
    return type(_config).__name__

@ex.command
def leave():
    sys.exit(3)

@ex.automain
def train(_run, lr, epochs, data, model):
    with open("trained", "a") as stream:
        stream.write("x")
    for epoch in range(epochs):
        _run.log_scalar("loss", lr, epoch)
    return (lr + 1) * epochs * data["size"]
"""
LINES = """
# From the README:
$ python old.py with lr=1e-3 epochs=1e1
python old.py \\
    with small data.size=7 -F elsewhere
with lr=abc
with model.depht=3
with epochs=101
with unknown=1
help
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the script, in which nothing else is to appear."""
    monkeypatch.chdir(tmp_path)
    Path("old.py").write_text(SCRIPT)
    Path("lines.txt").write_text(LINES)
    return tmp_path


def there():
    return sorted(path.name for path in Path().iterdir())


def check(*words):
    return main(["check", *words])


def test_script_that_differs_in_nothing_is_the_same(folder, capsys):
    Path("old.py").write_text(SCRIPT.replace("{os.getpid()}", "1"))
    assert check("old.py") == 0
    assert capsys.readouterr().out == "same     print_config\n0 of 1 command line differ from stock Sacred\n"
    assert there() == ["lines.txt", "old.py"]


@pytest.mark.slow
def test_each_line_is_the_same_or_says_what_differs(folder, capsys):
    assert check("old.py", "--commands", "lines.txt", "--json") == 1
    document = checked("check", capsys.readouterr().out)
    lines = {line["text"]: line for line in document["lines"]}
    differing = {text: line["differences"] for text, line in lines.items() if line["differences"]}
    assert list(differing) == ["with lr=abc", "with model.depht=3", "with epochs=101"]
    assert document["num_differing"] == 3
    for text in "with lr=abc", "with model.depht=3":
        assert [each["kind"] for each in differing[text]] == ["accepted"]
        assert lines[text]["sacred"] == {"is_accepted": True, "error": None, "exit_code": 0}
        assert not lines[text]["here"]["is_accepted"]
    assert "did you mean model.depth" in lines["with model.depht=3"]["here"]["error"]
    [module] = differing["with epochs=101"]
    assert (module["kind"], module["name"], module["here"]) == ("config", "math", None)
    assert lines["with epochs=101"]["varying"] == ["started"]
    assert not lines["with unknown=1"]["sacred"]["is_accepted"]
    assert lines["help"]["here"]["is_accepted"]
    assert there() == ["lines.txt", "old.py"]


@pytest.mark.slow
def test_commands_are_run_for_their_results_and_nothing_is_recorded(folder, capsys):
    Path("lines.txt").write_text("with lr=0.5 epochs=2\nwith lr=abc\ndescribe\nleave\n")
    assert check("old.py", "--commands", "lines.txt", "--run", "--json") == 1
    document = checked("check", capsys.readouterr().out)
    _, trained, failed, described, left = document["lines"]
    assert (trained["differences"], failed["differences"]) == ([], [])
    assert failed["sacred"]["error"].startswith("TypeError: ")
    [result] = [each for each in described["differences"] if each["kind"] == "result"]
    assert (result["sacred"], result["here"]) == ("'ReadOnlyDict'", "'Map'")
    assert left["sacred"]["exit_code"] == left["here"]["exit_code"] == 3
    assert Path("trained").read_text() == "xxx"  # twice, and once for the line that only stock Sacred accepts
    assert there() == ["lines.txt", "old.py", "trained"]


@pytest.mark.slow
def test_module_of_a_package_is_checked(folder, capsys):
    Path("pkg").mkdir()
    Path("pkg/__init__.py").write_text("")
    Path("pkg/names.py").write_text("NAME = 'old'")
    Path("pkg/train.py").write_text(
        SCRIPT.replace('Experiment("old"', "Experiment(NAME").replace(
            "import sys\n", "import sys\nfrom .names import NAME\n"
        )
    )
    Path("lines.txt").write_text("python -m pkg.train with lr=1\n")
    assert check("pkg.train", "--commands", "lines.txt") == 0
    assert "same     with lr=1" in capsys.readouterr().out


@pytest.mark.slow
def test_project_may_have_packages_called_like_those_of_the_lab(folder):
    for name in ("configs", "experiments", "runs"):
        Path(name).mkdir()
        Path(name, "__init__.py").write_text("")
    assert check("old.py") == 0


PARSER = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('data')\nparser.parse_args()\n"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, "old.py: expected the Python file that runs the experiment, such as train.py, or its module"),
        pytest.param("print(1)", "old.py: it creates no experiment of Sacred; name the script", marks=pytest.mark.slow),
        pytest.param(
            SCRIPT.replace("automain", "main"),
            "old.py: it creates an experiment and does not run it; name the script",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            PARSER + SCRIPT,
            "it ends with an error under stock Sacred, too: ",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "import nowhere\n" + SCRIPT, "too: ModuleNotFoundError: No module named 'nowhere'", marks=pytest.mark.slow
        ),
    ],
)
def test_script_that_cannot_be_checked_is_rejected(folder, capsys, script, said):
    Path("old.py").unlink() if script is None else Path("old.py").write_text(script)
    assert check("old.py") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert said in err


@pytest.mark.slow
def test_lines_that_both_reject_are_no_comparison(folder, capsys):
    Path("old.py").write_text(PARSER + SCRIPT)
    Path("lines.txt").write_text("--what\n")
    assert check("old.py", "--commands", "lines.txt") == 2
    out, err = capsys.readouterr()
    assert "both fail: " in out
    assert "neither accepts any of these command lines" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--commands", "nowhere.txt"], "nowhere.txt cannot be read"),
        (["--commands", "empty.txt"], "got no command line, expected one a line"),
        (["--run"], "--run: got no command lines to run; give a file of them with --commands"),
    ],
)
def test_commands_that_are_not_there_are_rejected(folder, capsys, words, said):
    Path("empty.txt").write_text("# later\n")
    assert check("old.py", *words, "--json") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err


@pytest.mark.slow
def test_ctrl_c_ends_the_script_too(folder):
    os.mkfifo("begun")
    Path("old.py").write_text(
        "import os, time\nwith open('begun', 'w') as stream:\n    stream.write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    with Process([sys.executable, "-m", "sacristan", "check", "old.py"], stdout=PIPE, stderr=PIPE) as process:
        pid = int(Path("begun").read_text())
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
