"""The commands as people start them: processes, terminals, shells, signals."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import sys
import time
import uuid
from pathlib import Path

import pymongo
import pytest

from tests.processes import DEVNULL, PIPE, Process, run
from tests.terminals import run_in_terminal

LAB = Path(__file__).resolve().parents[2]
ESC = "\x1b[31mred\x1b]0;title\x07"
SCRIPT = """
import sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, MongoObserver
ex = Experiment("recorded", save_git_info=False)
where = sys.argv.pop(1)
ex.observers.append(MongoObserver(where, "{database}", failure_dir="spool") if "://" in where else FileObserver(where))

@ex.config
def config():
    lr = 0.1
    text = "a long text that goes on and on " * 4
    until = ""

@ex.automain
def main(_run, until):
    print("first", flush=True)
    while until and not Path(until).exists():
        time.sleep(0.05)
    print("last \\x1b[32mgreen\\x1b[0m \\x1b[2Jgone \\x1b]0;title\\x07back")
    _run.log_scalar("val/accuracy", 0.5, 1)
    return 0.5
"""


@pytest.fixture(scope="module", params=["files", pytest.param("mongo", marks=pytest.mark.slow)])
def place(request, tmp_path_factory):
    """A script that records a run, where it is recorded to, and the store to read it from; there is run 1 already."""
    folder = tmp_path_factory.mktemp(request.param)
    name = f"command_{uuid.uuid4().hex}"
    url = request.getfixturevalue("mongo_url") if request.param == "mongo" else None
    script = folder / "recorded.py"
    script.write_text(SCRIPT.format(root=str(LAB), database=name))
    recorded = [sys.executable, str(script), url or "store", "--beat-interval=0.1", "--capture=sys"]
    run(recorded, cwd=folder, check=True, capture_output=True)
    yield recorded, folder, f"{url}/{name}" if url else str(folder / "store")
    if url:
        with pymongo.MongoClient(url) as client:
            client.drop_database(name)


@pytest.fixture
def started():
    """Start a process that ends with the test."""
    processes = []

    def start(*command, **options):
        processes.append(Process(command, **options))
        return processes[-1]

    yield start
    for process in processes:
        process.close()


@pytest.fixture
def environment(place):
    # COLUMNS, which test workers have, would go before the terminal's own width.
    kept = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return {**kept, "SACRISTAN_STORE": place[2], "PYTHONPATH": str(LAB), "TERM": "xterm-256color"}


@pytest.fixture
def runs(environment):
    """Run a command to its end, into pipes."""

    def call(*words):
        command = [sys.executable, "-m", "sacristan", *words]
        return run(command, cwd=LAB, env=environment, capture_output=True, text=True, timeout=60)

    return call


def in_terminal(words, environment, columns, **variables):
    """Run a command in a terminal, and return what it wrote."""
    return run_in_terminal([sys.executable, "-m", "sacristan", *words], LAB, {**environment, **variables}, columns)[1]


def without_colours(text):
    return re.sub("\x1b\\[[0-9;]*m", "", text)


def lines_until(stream, is_last, timeout_s=60.0):
    """Return lines of a pipe up to the first of which `is_last` is true."""
    found, held, deadline = [], b"", time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if select.select([stream], [], [], 0.1)[0]:
            held += os.read(stream.fileno(), 65536)
            *lines, held = held.split(b"\n")
            for line in lines:
                found.append(line.decode())
                if is_last(found[-1]):
                    return found
    raise AssertionError(f"waited in vain; there came {found}")


@pytest.mark.slow
def test_cold_ls_loads_neither_torch_nor_rich(runs, environment):
    script = """
import json, sys
from sacristan.__main__ import main
heavy = ("torch", "pandas", "rich", "sacred", "sklearn", "matplotlib", "argcomplete")
for words in json.loads(sys.argv[1]):
    print(words, main(words), [name for name in heavy if name in sys.modules], file=sys.stderr)
"""
    commands = [["ls"], ["ls", "--json"], ["show", "1", "--json"], ["log", "1"]]
    command = [sys.executable, "-c", script, json.dumps(commands)]
    done = run(command, cwd=LAB, env=environment, capture_output=True, text=True, cold=True)
    assert done.stderr.splitlines() == [f"{words} 0 []" for words in commands]


def test_terminal_gets_colours_and_lines_that_fit(environment):
    for columns in (120, 60, 34, 20):
        text = in_terminal(["ls", "--columns", "text,lr,status,start,name"], environment, columns)
        assert "\x1b[" in text
        lines = without_colours(text).splitlines()
        assert max(map(len, lines[:2])) <= columns
        assert lines[1].startswith("1 ")
        # Of the words only a status is never cut.
        assert ("…" in lines[1]) is (columns > 20), columns
    assert "no room for" in lines[2]
    assert "\x1b[" not in in_terminal(["ls"], environment, 80, NO_COLOR="1")
    assert "\x1b[" not in in_terminal(["ls", "--json"], environment, 80)


def test_pipe_gets_no_colours_and_whole_cells(runs):
    done = runs("ls", "--columns", "text,status")
    assert "\x1b" not in done.stdout
    assert "a long text that goes on and on " * 4 in done.stdout


def test_log_keeps_colours_in_a_terminal_and_drops_the_rest(runs, environment):
    text = in_terminal(["log", "1"], environment, 80)
    assert "last \x1b[32mgreen\x1b[0m gone back" in text
    assert "last green gone back" in in_terminal(["log", "1"], environment, 80, NO_COLOR="1")
    assert "last \x1b[32mgreen\x1b[0m \x1b[2Jgone \x1b]0;title\x07back\n" in runs("log", "1").stdout


def test_follow_shows_a_run_from_start_to_end(place, environment, started, tmp_path):
    """`ls --follow` goes on until Ctrl-C, `log --follow` until the run ends."""
    command = (sys.executable, "-m", "sacristan")
    pipes = {"cwd": LAB, "env": environment, "stdout": PIPE, "stderr": PIPE}
    listing = started(*command, "ls", "--follow", "--json", "--columns", "status,lr", **pipes)
    assert json.loads(lines_until(listing.stdout, lambda line: True)[-1])["status"] == "COMPLETED"
    command_line = [*place[0], "with", f"until={tmp_path / 'end'}", "lr=0.5"]
    started(*command_line, cwd=place[1], stdout=DEVNULL, stderr=DEVNULL)
    seen = lines_until(listing.stdout, lambda line: '"lr": 0.5' in line)
    assert json.loads(seen[-1])["status"] == "RUNNING"
    log = started(*command, "log", "latest", "--follow", **pipes)
    assert lines_until(log.stdout, lambda line: line == "first")
    assert log.poll() is None
    (tmp_path / "end").touch()
    assert "COMPLETED" in lines_until(listing.stdout, lambda line: "COMPLETED" in line)[-1]
    lines_until(log.stdout, lambda line: line.startswith("last "))
    assert log.wait(60) == 0
    assert listing.poll() is None
    listing.send_signal(signal.SIGINT)
    assert listing.wait(60) == 130
    assert listing.stderr.read() == b""


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["lss"], 2, "error: got 'lss', which is no command; did you mean ls?; sacristan --help lists all"),
        (
            ["ls", "--limit", "x"],
            2,
            "error: argument --limit: got 'x', expected a whole number of at least 0, 0 for all; see ",
        ),
        (["ls", "--lim", "3"], 2, "error: got '--lim'; did you mean --limit?; see sacristan ls --help"),
        (["show"], 2, "error: the following arguments are required: RUN; see sacristan show --help"),
        (["ls", "--where", "lr"], 1, "error: got the condition 'lr', expected NAME"),
        (["ls", "--store", "/nowhere/at/all"], 1, "error: there is no folder /nowhere/at/all; give the folder or URL"),
        (["ls", "--store", "ftp://x"], 1, "error: got the store 'ftp://x', expected a folder or a mongodb:// URL"),
        (
            ["ls", "--store", "mongodb://user:secret@127.0.0.1:9/x?serverSelectionTimeoutMS=100"],
            1,
            "error: MongoDB at mongodb://127.0.0.1:9/x: the",
        ),
        (
            ["reindex", "--store", "mongodb://user:secret@127.0.0.1:9/x"],
            1,
            "error: got the store mongodb://127.0.0.1:9",
        ),
    ],
    ids=str,
)
def test_errors_are_one_line_that_says_what_to_do(words, code, message):
    command = [sys.executable, "-m", "sacristan", *words]
    done = run(command, cwd=LAB, env={**os.environ, "PYTHONPATH": str(LAB)}, capture_output=True, text=True)
    assert done.returncode == code
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
    assert "secret" not in done.stderr
    assert done.stdout == ""


def test_without_a_command_there_is_help(environment):
    done = run([sys.executable, "-m", "sacristan"], cwd=LAB, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: sacristan")
    assert re.search("^  reproduce +run a past run again", done.stdout, re.MULTILINE)


def test_closed_pipe_ends_quietly(environment):
    text = f"{sys.executable} -m sacristan ls | true; exit ${{PIPESTATUS[0]}}"
    done = run(["bash", "-c", text], cwd=LAB, env=environment, capture_output=True, text=True)
    assert done.returncode in (0, 141)
    assert done.stderr == ""


# Completion

SHELLS = {
    "bash": """eval "$(sacristan completion bash)"; COMP_LINE='{line}' COMP_POINT={point} COMP_TYPE=9
        COMP_WORDS=({line}) COMP_CWORD={word}
        _python_argcomplete runs "${{COMP_WORDS[COMP_CWORD]}}" ''; printf '%s\\n' "${{COMPREPLY[@]}}" """,
    "fish": "sacristan completion fish | source; complete -C '{line}'",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("line", "expected"),
    [("runs sho", {"show"}), ("sacristan ls --wh", {"--where"}), ("sacristan show ", {"1", "latest"})],
)
def test_shell_completes_commands_options_and_runs(environment, tmp_path, shell, line, expected):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "runs"
    program.write_text(f"#!{sys.executable}\nimport sys\nfrom sacristan.__main__ import main\nsys.exit(main())\n")
    program.chmod(0o755)
    word = len(line.split(" ")) - 1
    text = SHELLS[shell].format(line=line, point=len(line), word=word)
    variables = {**environment, "PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = run([shell, "-c", text], env=variables, cwd=tmp_path, capture_output=True, text=True)
    found = {part.split("\t")[0].strip() for part in done.stdout.splitlines()}
    assert expected <= found, done.stderr
    if line.endswith("sho"):
        assert found == expected


def test_zsh_takes_the_script(environment, tmp_path):
    if shutil.which("zsh") is None:
        pytest.skip("there is no zsh here")
    text = f'autoload -Uz compinit; compinit -u; eval "$({sys.executable} -m sacristan completion zsh)"; '
    text += "echo $_comps[sacristan]"
    variables = {**environment, "HOME": str(tmp_path)}
    done = run(["zsh", "-fc", text], cwd=LAB, env=variables, capture_output=True, text=True)
    assert done.stdout.strip() == "_python_argcomplete", done.stderr
