"""Model cards, from records in files and in MongoDB; what a record holds never becomes markup."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sacristan import runs
from sacristan.__main__ import main as command
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, MongoObserver
from sacristan.runs.comparison.model_card import escape_markdown, model_card

EVIL = "<img src=x onerror=alert(1)> [a](http://e.v) `b` **c** | d\n# e\x1b[31m"
SHOWN = r"&lt;img src=x onerror=alert(1)\> \[a\](http\://e.v) \`b\` \*\*c\*\* \| d \# e \[31m"


@pytest.fixture
def stores(tmp_path, database, mongo_url):
    """Return a run of a classifier as its folder and as a database have it."""
    ex = Experiment(
        "classify",
        base_dir=Path(__file__).parent,
        save_git_info=False,
        ingredients=[],
        record_to=str(tmp_path / "runs"),
    )
    ex.observers.extend(
        [
            FileObserver(tmp_path / "runs"),
            MongoObserver(mongo_url, database.name, failure_dir=tmp_path / "spool"),
        ]
    )

    @ex.config
    def config():
        model = {"name": "mlp", "path": EVIL}
        data = {"name": EVIL}
        fence = "````"

    @ex.main
    def main(_run):
        _run.info["data"] = {"name": EVIL, "task": "classification", "parts": {"train": 80, "test": 20}}
        _run.info["test"] = {"accuracy": 0.9, "loss": 0.25}
        return 0.9

    ex.run(config_updates={"model": {"name": "cnn"}}, options={"--capture": "sys"})
    return tmp_path / "runs", f"{mongo_url}/{database.name}"


def test_card_tells_the_same_from_files_and_mongodb_and_nothing_of_it_is_markup(stores):
    cards = []
    for where in stores:
        with runs.open_store(where) as store:
            run = store.get("latest")
            store.write_note(run, EVIL)
            cards.append(model_card(store.get("latest")))
    assert cards[0] == cards[1]
    lines = cards[0].splitlines()
    assert lines[0] == f"# classify\\: cnn on {SHOWN}"
    assert f"- note: {SHOWN}" in lines
    assert "- samples: train 80, test 20" in lines
    assert "| accuracy | 0.9000 | 0.6990 to 0.9721 |" in lines
    assert "| loss | 0.2500 |  |" in lines
    assert "The interval is Wilson's, of the accuracy as a share of 20 test samples." in lines
    assert "- model.name: 'cnn'" in lines
    assert any(line.startswith("- torch: ") for line in lines)
    assert "sacristan reproduce 1" in lines
    assert lines[-3:] == ["## License", "", "<!-- the license of the weights, and of the data -->"]
    # All that is as it stood lies in blocks that nothing in them ends.
    outside, fence = [], None
    for line in lines:
        if fence is None and line.startswith("```"):
            fence = line.rstrip("abcdefghijklmnopqrstuvwxyz")
        elif line == fence:
            fence = None
        elif fence is None:
            outside.append(line)
    assert fence is None
    assert "`````yaml" in lines
    assert not [line for line in outside if "<img" in line or re.search(r"(?<!\\)\](?=\()", line)]
    assert "\x1b" not in cards[0]


def test_card_of_another_record_says_what_it_does_not_know(tmp_path):
    ex = Experiment("bare", base_dir=Path(__file__).parent, save_git_info=False, record_to=str(tmp_path))

    @ex.main
    def main(_run):
        _run.info["test"] = {"accuracy": 0.9}
        raise RuntimeError("no luck")

    with pytest.raises(RuntimeError):
        ex.run(options={"--capture": "sys"})
    with runs.open_store(tmp_path) as store:
        lines = model_card(store.get(1)).splitlines()
    assert "The run did not complete: it is FAILED." in lines
    assert "| accuracy | 0.9000 |  |" in lines
    assert "There are no intervals: the record does not say how many test samples were classified." in lines
    assert lines[lines.index("## Data") + 2] == "The record has no facts on this."


def test_card_is_written_to_a_file_that_is_not_there(stores, tmp_path, capsys):
    where, path = str(stores[0]), tmp_path / "card.md"
    assert command(["--store", where, "card", "1", "-o", str(path)]) == 0
    assert command(["--store", where, "card", "1"]) == 0
    assert capsys.readouterr().out == path.read_text()
    path.write_text("mine")
    assert command(["--store", where, "card", "1", "-o", str(path)]) == 1
    assert "card.md already exists; choose another name, or use --force" in capsys.readouterr().err
    assert path.read_text() == "mine"
    assert command(["--store", where, "card", "1", "-o", str(path), "--force"]) == 0
    assert path.read_text().startswith("# classify")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("- item", r"\- item"),
        ("1. one", r"1\. one"),
        ("2026-11-22", "2026-11-22"),
        ("www.e.v and a@b.c", r"www\.e.v and a\@b.c"),
        ("a\u2028b\u202ec", "a b c"),
        ("&lt;", "&amp;lt;"),
    ],
)
def test_escape_leaves_nothing_that_markdown_reads(text, shown):
    assert escape_markdown(text) == shown
