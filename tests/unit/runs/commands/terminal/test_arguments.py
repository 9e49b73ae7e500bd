import pytest

from runs import commands
from runs.__main__ import main, make_parser


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ls", "--colums", "lr"], "got '--colums'; did you mean --columns?; see python -m runs ls --help"),
        (["ls", "--colums=lr"], "got '--colums=lr'; did you mean --columns?"),
        (["ls", "lr=1"], "got 'lr=1', which no argument takes; see python -m runs ls --help"),
        (["artifacts", "get", "1", "-o", "x", "--zzz"], "got '--zzz', which no argument takes"),
        (["ls", "--limit", "3.5"], "argument --limit: got '3.5', expected a whole number"),
        (["plot", "1", "--metric", "loss", "--confidence", "high"], "--confidence: got 'high', expected a number"),
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
    class Impatient(dict):
        def items(self):
            raise KeyboardInterrupt

    monkeypatch.setattr("runs.__main__.COMMANDS", Impatient(commands.COMMANDS))
    assert main(["ls"]) == 130
    assert capsys.readouterr() == ("", "")
