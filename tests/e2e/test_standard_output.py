"""Commands whose standard output is full or closed: one line on stderr, and exit code 74."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.processes import DEVNULL, run

LAB = Path(__file__).resolve().parents[2]
LINE = "error: standard output cannot be written ({why}); the output is incomplete\n"
WAYS = {"full": "No space left on device", "closed": "it is closed"}
SCRIPT = """
import contextlib, io, json, os, sys
sys.path.insert(0, {lab!r})
from sacristan.experiments import Experiment
from sacristan.ingredients import data, device, loss, model
from sacristan.observers import file_observer
from sacristan.__main__ import main

ex = Experiment("printed", ingredients=[part.ingredient for part in (device, data, loss, model)], save_git_info=False)
ex.observers.append(file_observer("my_runs"))

@ex.config
def config():
    lr = 0.1
    seed = 0

@ex.named_config
def small():
    lr = 0.01

@ex.main
def train(_run, lr):
    with open("weights.txt", "w") as file:
        file.write("weights")
    _run.add_artifact("weights.txt")
    _run.log_scalar("val/accuracy", lr, 1)
    print("trained")
    return lr

first = sys.stdout

def asked(way, words):
    errors = io.StringIO()
    if way == "full":
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
        sys.stdout = open(1, "w", closefd=False)
    else:
        with contextlib.suppress(OSError):
            os.close(1)
        sys.stdout = None
    with contextlib.redirect_stderr(errors):
        try:
            if words[0] == "exp":
                quiet = [] if words[1] == "--help" else ["-l", "CRITICAL"]
                code = ex.run_commandline(["exp.py", *words[1:], *quiet])
            else:
                code = main(words)
        except SystemExit as end:
            code = end.code
    return [code, errors.getvalue()]

ways, table = json.loads(sys.argv[1])
for lr in (0.1, 0.2):
    ex.run(config_updates={{"lr": lr}}, options={{"--loglevel": "ERROR"}})
main(["note", "1", "noted"])
found = {{way: [asked(way, words) for words in table] for way in ways}}
sys.stdout = first
with open("found.json", "w") as file:
    json.dump(found, file)
"""
# Every command that prints to stdout, in an order in which each has something to print.
TABLE = """
--help
ls --help
ls
ls --json
show latest
config latest
config latest --json
log latest
metrics latest
metrics latest val/accuracy
metrics latest --csv
diff 1 2
compare --by lr --metric val/accuracy.max
plot 1 2 --metric val/accuracy
plot 1 2 --metric val/accuracy --json
export --format csv
export --format json
export 1 2 -o runs.zip --force
report 1 2 -o report.html --force
card 1
copy 1 --to copied
import runs.zip
artifacts ls 1
artifacts get 1 -o gotten --force
sources ls 1
sources get 1 -o sources --force
tag 1 good
note 1
reap --json
schema
schema tag
reindex
sync --json
completion bash
rm 2 --yes
restore
restore 2
gc
exp --help
exp print_config
exp print_named_configs
exp print_dependencies
exp data.stats
exp model.summary
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return the outcome of each command of the table, by the failure of standard output."""
    folder = tmp_path_factory.mktemp("printed")
    (folder / "asking.py").write_text(SCRIPT.format(lab=str(LAB)))
    table = [line.split() for line in TABLE.strip().splitlines()]
    command = [sys.executable, "asking.py", json.dumps([list(WAYS), table])]
    run(command, cwd=folder, check=True, stdout=DEVNULL)
    return json.loads((folder / "found.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_output_that_cannot_be_written_is_one_line_and_exit_code_74(found, way):
    ended = zip(TABLE.strip().splitlines(), map(without_notes, found[way]), strict=True)
    assert {words: end for words, end in ended if end != (74, LINE.format(why=WAYS[way]))} == {}


def without_notes(end):
    """Return a command's exit code and errors, without the notes that it prints first."""
    code, errors = end
    return code, re.sub("^note: .*\n", "", errors, flags=re.MULTILINE)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", WAYS)
def test_process_whose_output_cannot_be_written_says_so_when_it_ends(tmp_path, way):
    (tmp_path / "my_runs").mkdir()
    to = {"full": ">/dev/full", "closed": ">&-"}[way]
    text = f"PYTHONPATH={LAB} {sys.executable} -m sacristan ls {to}"
    done = run(text, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (74, LINE.format(why=WAYS[way]))
    done = run(f"{text} 2>&-", cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 74


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", WAYS)
def test_output_of_a_script_ahead_of_its_experiment_counts(tmp_path, way):
    script = SCRIPT.format(lab=str(LAB)).partition("first = sys.stdout")[0]
    script = script.replace("import contextlib,", "print('hello')\nimport contextlib,")
    (tmp_path / "asking.py").write_text(f"{script}\nex.run_commandline()\n")
    to = {"full": ">/dev/full", "closed": ">&-"}[way]
    text = f"PYTHONUNBUFFERED= {sys.executable} asking.py print_config -l CRITICAL {to}"
    done = run(text, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (74, LINE.format(why=WAYS[way]))
