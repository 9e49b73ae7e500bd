"""`sacristan compare` and `sacristan plot` as typed, on a folder and on a real MongoDB."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import sys
import termios
import xml.etree.ElementTree as ET

import pymongo
import pytest

from sacristan.__main__ import main
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, MongoObserver
from tests.processes import Process

ACCURACY = {"adam": [0.90, 0.92, 0.91], "sgd\x1b[31m": [0.85, 0.88, 0.83]}


def record(folder, url, name):
    ex = Experiment("compared", base_dir=folder, save_git_info=False, system_metrics_s=None)

    @ex.config
    def config():
        optimizer = {"name": "adam"}
        seed = 0
        best = 0.5

    @ex.main
    def main(_run, best):
        for step in range(20):
            _run.log_scalar("val/accuracy", best * step / 19, step)
            _run.log_scalar("val/loss", float("nan") if step == 10 else 1 / (1 + step), step)

    ex.observers.append(FileObserver(folder / "store"))
    ex.observers.append(MongoObserver(url, name, failure_dir=folder / "spool"))
    for optimizer, values in ACCURACY.items():
        for seed, best in enumerate(values):
            updates = {"optimizer": {"name": optimizer}, "seed": seed, "best": best}
            ex.run(config_updates=updates, options={"--capture": "sys"})


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, mongo_url):
    folder = tmp_path_factory.mktemp("compared")
    record(folder, mongo_url, "compared")
    yield {"files": str(folder / "store"), "mongo": f"{mongo_url}/compared"}
    with pymongo.MongoClient(mongo_url) as client:
        client.drop_database("compared")


@pytest.fixture(params=["files", pytest.param("mongo", marks=pytest.mark.slow)])
def where(request, recorded):
    return recorded[request.param]


def call(capsys, where, *words):
    code = main(["--store", where, *words])
    out, err = capsys.readouterr()
    return code, out, err


COMPARE = ("compare", "--by", "optimizer.name", "--over", "seed", "--metric", "val/accuracy.max")


def test_compare_in_json_is_whole(capsys, where):
    import scipy.stats

    code, out, _ = call(capsys, where, *COMPARE, "--json")
    found = json.loads(out)
    adam, sgd = ACCURACY.values()
    assert code == 0
    assert [group["values"]["optimizer.name"] for group in found["groups"]] == list(ACCURACY)
    assert found["groups"][0] | {"values": None, "std": None, "low": None, "high": None} == {
        "group": "optimizer.name=adam", "values": None, "n": 3, "mean": pytest.approx(0.91), "std": None, "low": None,
        "high": None, "best": 0.92, "best_run": "2", "runs": ["1", "2", "3"], "num_left_out": 0,
    }  # fmt: skip
    [pair] = found["pairs"]
    expected = scipy.stats.ttest_rel(adam, sgd)
    assert (pair["method"], pair["n"], pair["p"]) == ("paired t", 3, pytest.approx(expected.pvalue))
    interval = expected.confidence_interval()
    assert (pair["low"], pair["high"]) == pytest.approx((interval.low, interval.high))
    assert set(found) == {
        "metric", "by", "over", "confidence", "larger_is_better", "groups", "pairs", "left_out", "cautions",
    }  # fmt: skip
    # The setting that made the results up is another one, and that is said.
    assert "optimizer.name=adam: its runs also differ in best" in found["cautions"]


def test_compare_as_a_table_is_harmless_and_says_what_it_knows(capsys, where):
    code, out, _ = call(capsys, where, *COMPARE)
    assert code == 0
    assert "\x1b" not in out
    lines = out.splitlines()
    assert lines[0] == "val/accuracy.max by optimizer.name over seed (greater is better)"
    assert lines[1].split() == ["optimizer.name", "n", "mean", "std", "95%", "interval", "best", "run"]
    assert lines[2].split()[:3] == ["adam", "3", "0.910"]
    assert r"'sgd\x1b[31m'" in lines[3]
    assert any(line.startswith("caution: optimizer.name=adam: n = 3 is few") for line in lines)


def test_compare_on_a_narrow_terminal_drops_numbers_and_cuts_none(capsys, where, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "90")
    _, out, _ = call(capsys, where, *COMPARE)
    head, row, note = out.splitlines()[5:8]
    assert head.rpartition("shows")[2].split() == ["mean", "difference", "p", "(Holm)"], out
    assert "0.057 [0.005, 0.108]" in row
    assert note == "(no room for effect, test, p: widen the terminal)"


def test_compare_takes_conditions(capsys, where):
    _, out, _ = call(capsys, where, *COMPARE, "--where", "seed<2", "--where", "optimizer.name=adam", "--json")
    assert [group["n"] for group in json.loads(out)["groups"]] == [2]
    code, _, err = call(capsys, where, "compare", "--by", "seed", "--metric", "result")
    assert (code, err) == (1, "error: none of the 6 runs can be compared by result; each has no result\n")


def test_compare_says_which_way_a_person_chose(capsys, where):
    for option, said in (("--max", "greater is better"), ("--min", "less is better")):
        code, out, _ = call(capsys, where, "compare", "--by", "optimizer.name", "--metric", "best", option)
        assert (code, out.splitlines()[0]) == (0, f"best by optimizer.name ({said})")


def test_compare_takes_a_mode_a_test_and_a_confidence(capsys, where):
    import scipy.stats

    _, out, _ = call(capsys, where, *COMPARE, "--mode", "min", "--test", "welch", "--confidence", "0.8", "--json")
    found = json.loads(out)
    assert (found["larger_is_better"], found["confidence"]) == (False, 0.8)
    assert [group["best"] for group in found["groups"]] == [min(values) for values in reversed(ACCURACY.values())]
    [pair] = found["pairs"]
    expected = scipy.stats.ttest_ind(*reversed(ACCURACY.values()), equal_var=False)
    interval = expected.confidence_interval(0.8)
    assert (pair["method"], pair["p"]) == ("welch t", pytest.approx(expected.pvalue))
    assert (pair["low"], pair["high"]) == pytest.approx((interval.low, interval.high))


@pytest.mark.slow
def test_compare_for_latex(capsys, where):
    code, out, _ = call(capsys, where, *COMPARE, "--latex")
    assert code == 0
    assert r"\begin{tabular}{lrrrcr}" in out
    assert out.splitlines()[1] == "% val/accuracy.max: greater is better"
    assert r"& val/accuracy.max $\uparrow$ & std" in out
    assert "adam & 3 & $0.910$ & $0.010$ & $[0.885, 0.935]$ & $0.92$ \\\\" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("compare", "--by", "optimizer.nmae", "--metric", "result"), "did you mean optimizer.name"),
        (("compare", "--by", "seed", "--metric", "val/accuracy"), "did you mean val/accuracy."),
        (("compare", "--by", "seed", "--metric", "best"), "best: no run records whether more or less of it is better"),
        (("plot", "latest", "--metric", "nope"), "no run has the metric 'nope'; there are: val/accuracy, val/loss"),
        (("plot", "--metric", "val/loss"), "got no run; name some"),
        (("plot", "1", "--where", "seed=1", "--metric", "val/loss"), "got runs and conditions, expected either"),
        (("plot", "99", "--metric", "val/loss"), "there is no run '99'"),
        (("plot", "1", "--metric", "val/loss", "--output", "x.gif"), "got the file x.gif, expected one that ends in"),
        (("plot", "1", "--metric", "val/loss", "--x", "epoch"), "its record has no epochs; log a metric named epoch"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_makes_no_sense_is_one_line(capsys, where, words, message):
    code, out, err = call(capsys, where, *words)
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert err.startswith("error: ")
    assert message in err


def test_plot_on_the_terminal_fits_and_is_plain_when_piped(capsys, where, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    code, out, _ = call(capsys, where, "plot", "1", "4", "--metric", "val/accuracy", "--metric", "val/loss")
    assert code == 0
    assert "\x1b" not in out
    lines = out.splitlines()
    assert [line for line in lines if line in ("val/accuracy", "val/loss")] == ["val/accuracy", "val/loss"]
    assert all(len(line) <= 60 for line in lines if "│" in line or "└" in line)
    assert lines.count("  a run 1: best=0.9, optimizer.name=adam") == 2
    assert "(gaps: 2 NaN or infinite)" in lines


def interval(values, confidence):
    import scipy.stats

    return scipy.stats.t.interval(confidence, 2, sum(values) / 3, scipy.stats.sem(values))


@pytest.mark.parametrize(
    ("words", "band"),
    [
        ((), lambda values: interval(values, 0.95)),
        (("--confidence", "0.8"), lambda values: interval(values, 0.8)),
        (("--band", "range"), lambda values: (min(values), max(values))),
        (("--band", "none"), lambda values: None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_plot_of_means_in_json(capsys, where, words, band):
    means = ("plot", "--by", "optimizer.name", "--over", "seed", "--metric", "val/accuracy", "--json")
    code, out, _ = call(capsys, where, *means, *words)
    [panel] = json.loads(out)["panels"]
    assert code == 0
    assert [len(curve["x"]) for curve in panel["curves"]] == [20, 20]
    for curve, values in zip(panel["curves"], ACCURACY.values(), strict=True):
        assert curve["y"][-1] == pytest.approx(sum(values) / 3)
        assert curve["counts"] == [3] * 20
        found = curve["low"] and (curve["low"][-1], curve["high"][-1])
        assert found == pytest.approx(band(values))


def test_plot_as_a_picture(capsys, where, tmp_path):
    file = tmp_path / "p.svg"
    words = ("plot", "--limit", "0", "--metric", "val/accuracy", "--smoothing", "0.6", "--title", "So <far>")
    assert call(capsys, where, *words, "--output", str(file)) == (0, f"{file}: 6 curves of 6 runs\n", "")
    groups = [group.get("id") for group in ET.parse(file).iter("{http://www.w3.org/2000/svg}g")]
    assert [name for name in groups if name and name.startswith("curve-")] == [f"curve-{n}" for n in range(6)]
    texts = [text.text for text in ET.parse(file).iter("{http://www.w3.org/2000/svg}text")]
    assert {"So <far>", "run 1: best=0.9, optimizer.name=adam, seed=0"} <= {*texts}


def test_plot_of_an_expression_is_computed_at_common_steps(capsys, where):
    def curves(metric):
        _, out, _ = call(capsys, where, "plot", "1", "4", "--metric", metric, "--json")
        (panel,) = json.loads(out)["panels"]
        assert panel["metric"] == metric
        return panel["curves"]

    accuracy, loss = curves("val/accuracy"), curves("val/loss")
    found = curves("val/accuracy - 2 * val/loss")
    for one, first, second in zip(found, accuracy, loss, strict=True):
        values = dict(zip(second["x"], map(float, second["y"]), strict=True))
        expected = [(x, y - 2 * values[x]) for x, y in zip(first["x"], first["y"], strict=True) if x in values]
        assert expected
        points = list(zip(one["x"], map(float, one["y"]), strict=True))
        assert points == [(x, pytest.approx(y, nan_ok=True)) for x, y in expected]
    code, _, error = call(capsys, where, "plot", "1", "--metric", "val/accuracy - ")
    assert code
    assert "got the expression 'val/accuracy - ': it ends too early" in error


def test_plot_limits_runs_that_were_not_named(capsys, where):
    _, out, _ = call(capsys, where, "plot", "--limit", "2", "--metric", "val/accuracy", "--json")
    [panel] = json.loads(out)["panels"]
    assert [curve["label"].split(":")[0] for curve in panel["curves"]] == ["run 6", "run 5"]
    assert panel["notes"] == ["2 runs; there are more: --limit 0 takes all"]


def test_plot_on_a_terminal_has_colours_and_its_width(recorded):
    out = on_terminal(recorded["files"])
    assert "\x1b[38;5;32m" in out
    assert max(len(line) for line in out.splitlines() if "└" in line) <= 50
    assert "\x1b[38" not in on_terminal(recorded["files"], NO_COLOR="1")


def on_terminal(where, **variables):
    """Return what `plot` prints on a terminal of 50 columns."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 50, 0, 0))
    command = [sys.executable, "-m", "sacristan", "--store", where, "plot", "1", "4", "--metric", "val/accuracy"]
    names = os.environ.keys() - {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM"}
    env = {name: os.environ[name] for name in names} | {"PYTHONPATH": os.pathsep.join(sys.path)} | variables
    with Process(command, stdin=slave, stdout=slave, stderr=slave, env=env) as process:
        os.close(slave)
        parts = []
        while True:
            try:
                part = os.read(master, 65536)
            except OSError:  # Linux says so when the other end is closed
                break
            if not part:
                break
            parts.append(part)
        process.wait()
    os.close(master)
    assert process.returncode == 0, b"".join(parts)
    return b"".join(parts).decode()
