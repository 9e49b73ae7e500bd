"""`sacristan report`: one file, looked at in a real browser."""

from __future__ import annotations

import re

import pytest

from sacristan.__main__ import main
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver
from sacristan.runs import StoreError, open_store, write_report

EVIL = "</title></style><script>document.title='pwned'</script><img src=http://evil.example/x onerror=alert(1)>"


def report(where, path, *words, code=0):
    assert main(["--store", where, "report", "-o", str(path), *words]) == code
    return path.read_text(encoding="utf-8") if path.exists() else ""


def test_report_has_tables_curves_differences_and_commands(store, tmp_path, capsys):
    page = report(store, tmp_path / "report.html", "--limit", "0", "--title", "Digits & co")
    out = capsys.readouterr().out
    assert re.fullmatch(rf"{tmp_path}/report.html: 4 runs, \d+(\.\d+)? kB\n", out)
    assert "<h1>Digits &amp; co</h1>" in page
    assert page.count("<svg") == 2  # train/loss and val/accuracy; none of the machine's
    assert "train/loss, last" in page
    assert "<td" in page.partition("Differences of the configs")[2]
    with open_store(store) as opened:
        for run in opened:
            assert f"reproduce {run.uid}" in page
            assert run.status in page
    assert "RuntimeError" not in page.partition("How to run them again")[0]


def test_groups_are_compared_and_drawn_as_means(store, tmp_path):
    words = ("--by", "lr", "--compare", "val/accuracy.max", "--metric", "train/loss", "--x", "wall", "--log-y")
    page = report(store, tmp_path / "report.html", *words)
    assert "val/accuracy.max by lr (greater is better)" in page
    assert "is FAILED" in page
    assert page.count("<svg") == 1
    assert "time (UTC)" in page
    assert "Caution: " in page


def test_runs_are_sorted_and_groups_compared_as_a_person_says(store, tmp_path):
    page = report(store, tmp_path / "sorted.html", "--limit", "0", "--sort", "id")
    with open_store(store) as opened:
        assert re.findall(r"reproduce (\w+)", page) == [run.uid for run in opened.find(sort="id")]
    words = ("--by", "lr", "--over", "seed", "--compare", "val/accuracy.max", "--mode", "min")
    assert "val/accuracy.max by lr over seed (less is better)" in report(store, tmp_path / "compared.html", *words)


def test_report_opens_in_a_browser_without_asking_anybody(store, tmp_path, watched):
    report(store, tmp_path / "report.html", "--limit", "0")
    watch = watched()
    watch.page.set_viewport_size({"width": 390, "height": 800})
    for scheme in ("light", "dark"):
        watch.page.emulate_media(color_scheme=scheme)
        watch.requests.clear()
        watch.page.goto(f"file://{tmp_path}/report.html")
        assert watch.page.locator("svg").count() == 2
        assert watch.requests == [f"file://{tmp_path}/report.html", "data:,"][: len(watch.requests)]
        background, text = watch.page.evaluate(
            "() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        )
        assert (background == "rgb(255, 255, 255)") == (scheme == "light")
        assert background != text
        # Curves that are narrower than they were drawn are lower, too.
        ratios = "svg => [svg.clientWidth / svg.clientHeight, svg.viewBox.baseVal.width / svg.viewBox.baseVal.height]"
        shown, drawn = watch.page.locator("svg").first.evaluate(ratios)
        assert shown == pytest.approx(drawn, rel=0.02)
        # Wide tables scroll by themselves, the page does not.
        assert watch.page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
        assert len(watch.page.pdf()) > 10_000


def test_what_a_run_wrote_runs_nothing(tmp_path, watched):
    ex = Experiment("evil", base_dir=tmp_path, save_git_info=False, system_metrics_s=None)

    @ex.config
    def config():
        text = ""

    @ex.main
    def main_(_run, text):
        _run.log_scalar(EVIL, 1.0, 0)
        return text

    ex.observers.append(FileObserver(tmp_path / "store"))
    for text in (EVIL, "'\"><svg onload=alert(1)>"):
        ex.run(config_updates={"text": text}, options={"--capture": "sys"})
    page = report(str(tmp_path / "store"), tmp_path / "report.html", "--limit", "0", "--title", EVIL)
    assert "<script" not in page
    assert "<img" not in page
    watch = watched()
    watch.page.goto(f"file://{tmp_path}/report.html")
    assert watch.page.title() == EVIL
    assert "text" in watch.page.locator("section").nth(2).inner_text()


def test_a_file_that_is_there_is_replaced_by_force_alone_and_as_a_whole(recorded, tmp_path, capsys, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")
    assert report(str(recorded), path, "1", code=1) == "old"
    assert capsys.readouterr().err == f"error: {path} already exists; choose another name, or use --force\n"
    with open_store(recorded) as store:
        with pytest.raises(StoreError, match=r"already exists; choose another name, or use overwrite=True"):
            write_report(store.find(), path)
        with pytest.raises(StoreError, match=r"nowhere/report.html cannot be written"):
            write_report(store.find(), tmp_path / "nowhere" / "report.html")
    assert report(str(recorded), path, "1", "--metric", "nope", "--force", code=1) == "old"
    assert "<h1>" in report(str(recorded), path, "1", "--force")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "got no run; name some"),
        (("1", "--where", "lr=0.1"), "got runs and conditions"),
        (("--where", "lr>9"), "no run matches the conditions"),
        (("1", "--compare", "result"), "--compare: expected --by too"),
        (("--by", "lr", "--compare", "nope"), "nope"),
        (("1", "--x", "epoch"), "its record has no epochs"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_no_file(recorded, tmp_path, capsys, words, message):
    report(str(recorded), tmp_path / "report.html", *words, code=1)
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert message in err
    assert list(tmp_path.iterdir()) == []
