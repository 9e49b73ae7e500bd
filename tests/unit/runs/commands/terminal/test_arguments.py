import pytest

from sacristan.__main__ import main
from sacristan.command_line import make_parser

LIMITED = [
    [*words, "--limit", "-1"] for words in (["ls"], ["export"], ["plot", "--metric", "x"], ["report", "-o", "x"])
]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ls", "--colums", "lr"], "got '--colums'; did you mean --columns?; see sacristan ls --help"),
        (["ls", "--colums=lr"], "got '--colums=lr'; did you mean --columns?"),
        (["ls", "word"], "got 'word'; quote a condition: --where 'NAME=VALUE'; see sacristan ls --help"),
        (["show", "1", "word"], "got 'word', which no argument takes; see sacristan show --help"),
        (["ls", "-F", "folder"], "got '-F'; a store is written --store FOLDER; see sacristan ls --help"),
        (
            ["resume", "1", "lr=1"],
            "got 'lr=1'; a setting is written after `with`: with lr=1; see sacristan resume",
        ),
        (["ls", "lr<1"], "got 'lr<1'; a condition is written --where 'lr<1'; see sacristan ls --help"),
        (["ls", "mongodb://host/lab"], "got 'mongodb://host/lab'; a store is written --store mongodb://host/lab;"),
        (["show", "1", "/"], "got '/'; a store is written --store /;"),
        (["artifacts", "get", "1", "-o", "x", "--zzz"], "got '--zzz', which no argument takes"),
        (["ls", "--limit", "3.5"], "argument --limit: got '3.5', expected a whole number"),
        (["plot", "1", "--metric", "loss", "--confidence", "high"], "--confidence: got 'high', expected a number"),
        (["plot", "--metric", "loss", "--confidence", "0"], "--confidence: got '0', expected a number between 0 and 1"),
        (["plot", "--metric", "loss", "--smoothing", "1"], "--smoothing: got '1', expected a number from 0 to below 1"),
        (["report", "-o", "x.html", "--smoothing", "nan"], "--smoothing: got 'nan', expected a number from 0 to below"),
        (
            ["compare", "--by", "a", "--metric", "b", "--confidence", "2"],
            "--confidence: got '2', expected a number bet",
        ),
        (["metrics", "1", "--points", "3"], "argument --points: got '3', expected at least 4, or 0 for all"),
        (["board", "--port", "-1"], "argument --port: got '-1', expected 0 to 65535"),
        (["mongod", "--port", "65536"], "argument --port: got '65536', expected 0 to 65535"),
        (["import", "x.zip", "--max-bytes", "0"], "argument --max-bytes: got '0', expected a whole number above 0"),
        (["work", "--workers", "0"], "argument --workers: got '0', expected a whole number, at least 1"),
        (["work", "--retries", "-1"], "argument --retries: got '-1', expected a whole number of at least 0"),
        (["copy", "1", "--to", ""], "argument --to: got '', expected a folder of runs or a mongodb:// URL"),
        (["ls", "--store", ""], "argument --store: got '', expected a folder of runs or a mongodb:// URL"),
        (["sync", ""], "argument STORE: got '', expected a folder of runs or a mongodb:// URL"),
        *((words, "argument --limit: got '-1', expected a whole number of at least 0, 0 for all") for words in LIMITED),
    ],
    ids=str,
)
def test_typing_errors_are_told_with_what_was_expected(words, message, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/lab/runs/__main__.py"])
    with pytest.raises(SystemExit, match="2"):
        make_parser(words).parse_args(words)
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_interrupt_while_a_command_is_imported_ends_quietly(capsys, monkeypatch):
    def interrupted(home):
        raise KeyboardInterrupt

    monkeypatch.setattr("sacristan.command_line.load", interrupted)
    assert main(["ls"]) == 130
    assert capsys.readouterr() == ("", "")
