"""Tables of runs and points: each value arrives, and what a format cannot hold is reported before and after."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
from pathlib import Path

import pytest

from sacristan.__main__ import main
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver

COLUMNS = ("width", "only", "mixed", "big", "odd", "net", "formula", "loss.max")
EXACT = 2**60 + 1


@pytest.fixture(scope="module")
def where(tmp_path_factory):
    """A store of two runs whose settings no table holds as they are."""
    folder = tmp_path_factory.mktemp("tables")
    for mixed, more in ((1, {"only": EXACT}), ("x", {})):
        ex = Experiment("table", base_dir=Path(__file__).parent, save_git_info=False, system_metrics_s=None)
        ex.observers.append(FileObserver(folder / "store"))
        ex.add_config(width=8, mixed=mixed, big=10**400, odd=math.nan, net={"a": [math.inf], "b": None}, **more)
        ex.add_config(formula="=1+1")

        @ex.main
        def run(_run):
            for step, loss in enumerate((math.nan, math.inf, 1.5)):
                _run.log_scalar("loss", loss, step)

        ex.run()
    return str(folder / "store")


@pytest.fixture
def export(where, tmp_path, capsys):
    """Return the table and the lines of stderr and stdout."""

    def export(format, *words):
        output = tmp_path / f"table.{format}"
        assert main(["--store", where, "export", "1", "2", "-o", str(output), *words]) == 0
        out, err = capsys.readouterr()
        return output, err.splitlines(), out

    return export


RUNS = "note: a table of runs has settings, results and statistics of metrics: points are in a table of --metrics; "
POINTS = "note: a table of points has no settings and results: they are in a table without --metrics; "
NEED = {"csv": "CSV has no types", "json": "JSON has no NaN", "parquet": "Parquet has one type for each column"}


@pytest.mark.parametrize("format", NEED)
def test_table_says_first_what_it_cannot_hold(format, where, export):
    if format == "parquet":
        pytest.importorskip("pyarrow")
    for words, first in (((), RUNS), (("--metrics",), POINTS)):
        output, err, out = export(format, *words, "--force")
        assert err[0].startswith(first)
        assert err[0].endswith("files, media, sources, output and notes are in --format zip")
        assert err[1].startswith(f"note: {NEED[format]}")
        assert out.startswith(f"{output}: {2 if first == RUNS else 6} rows, ")
    _, err, _ = export(format, "--columns", "width", "--force")
    assert len(err) == 1  # the fields are chosen, and this format holds them


def test_csv_reports_lists_and_formulas(export):
    output, err, _ = export("csv", "--columns", ",".join(COLUMNS))
    assert err[-1] == "note: changed to fit csv: net, formula"
    with output.open(newline="") as stream:
        first, second = csv.DictReader(stream)
    assert json.loads(first["net"]) == {"a": ["Infinity"], "b": None}
    assert (first["formula"], first["odd"], first["mixed"], second["mixed"]) == ("'=1+1", "nan", "1", "x")
    assert (first["only"], second["only"], int(first["big"])) == (str(EXACT), "", 10**400)


def test_json_reports_nan_and_infinities(export):
    output, err, _ = export("json", "--columns", ",".join(COLUMNS))
    assert err[-1] == "note: changed to fit json: odd, net, loss.max"
    first, second = json.loads(output.read_text())
    assert first["net"] == {"a": ["Infinity"], "b": None}
    assert (first["odd"], first["loss.max"], first["mixed"], second["mixed"]) == ("NaN", "Infinity", 1, "x")
    assert (first["only"], second["only"], first["big"]) == (EXACT, None, 10**400)
    _, err, _ = export("json", "--metrics", "--force")
    assert err[-1] == "note: changed to fit json: value"


def test_parquet_reports_columns_of_text(export):
    parquet = pytest.importorskip("pyarrow.parquet")
    output, err, _ = export("parquet", "--columns", ",".join(COLUMNS))
    assert err[-1] == "note: changed to fit parquet: mixed, big, net"
    first, second = parquet.read_table(output).to_pylist()
    assert json.loads(first["net"]) == {"a": ["Infinity"], "b": None}
    assert (first["width"], first["formula"], math.isnan(first["odd"])) == (8, "=1+1", True)
    assert (first["mixed"], second["mixed"], int(first["big"])) == ("1", "x", 10**400)
    assert (first["only"], second["only"]) == (EXACT, None)


def test_run_whose_points_cannot_be_read_is_named_and_the_others_are_written(where, tmp_path, capsys):
    store = shutil.copytree(where, tmp_path / "store")
    (store / "1" / "metrics.bin").unlink()
    (store / "1" / "metrics.bin").mkdir()
    words = ["export", "1", "2", "--metrics", "-o", str(tmp_path / "points.csv")]
    assert main(["--store", str(store), *words]) == 0
    assert re.search(r"run 1.*the metrics in .*/store/1 cannot be read \(Is a directory\)", capsys.readouterr().err)
    with (tmp_path / "points.csv").open(newline="") as stream:
        assert [row["id"] for row in csv.DictReader(stream)] == ["2"] * 3
