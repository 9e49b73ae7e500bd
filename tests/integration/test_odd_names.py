"""Metrics and settings whose names hold operators: asked for between backticks, in every command and on the board."""

from __future__ import annotations

import json

import pytest
from starlette.testclient import TestClient

from sacristan.__main__ import main
from sacristan.experiments import Experiment
from sacristan.observers import FileObserver, MongoObserver
from sacristan.runs import FilterError, compare, open_store
from sacristan.runs.board.access import Policy
from sacristan.runs.board.serving import create_app

METRICS = ["AP@IoU=0.5", "recall@p>=0.9", "precision and recall", "A<B", "val/acc,top1", "odd`s", "-x"]
SETTINGS = ["a<b", "x, y", "in (1)"]


@pytest.fixture(params=["folder", pytest.param("database", marks=pytest.mark.slow)])
def where(request, tmp_path, database, mongo_url):
    in_folder = request.param == "folder"
    for number in range(3):
        ex = Experiment("odd", base_dir=tmp_path, save_git_info=False)
        ex.add_config({"weights": dict.fromkeys(SETTINGS, number % 2), "number": number})

        @ex.main
        def train(_run, number):
            for name in METRICS if number else METRICS[:-1]:
                _run.log_scalar(name, number / 10, 0)

        observer = FileObserver(tmp_path / "my_runs") if in_folder else MongoObserver(mongo_url, database.name)
        ex.observers.append(observer)
        ex.run(options={"--capture": "no"})
    return str(tmp_path / "my_runs") if in_folder else f"{mongo_url}/{database.name}"


def test_odd_names_are_asked_for_in_every_command(where, capsys, tmp_path):
    def runs(*words, code=0):
        assert main(["--store", where, *words]) == code
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    for name in METRICS:
        typed = "`" + name.replace("`", "``") + ".max`"
        listed = json.loads(
            runs("ls", "--where", f"{typed}>0.05", "--sort", f"-{typed}", "--columns", f"id,{typed}", "--json")
        )
        assert [(row["id"], row[typed]) for row in listed] == [("3", 0.2), ("2", 0.1)]
        [panel] = json.loads(runs("plot", "--where", f"{typed}>0", "--metric", typed.replace(".max", ""), "--json"))[
            "panels"
        ]
        assert [curve["y"] for curve in panel["curves"]] == [[0.2], [0.1]]
        points = json.loads(runs("metrics", "3", typed.replace(".max", ""), "--json"))["metrics"]
        assert [curve["values"] for curve in points.values()] == [[0.2]]
        table = runs(
            "export",
            "--where",
            f"{typed}>0.15",
            "--columns",
            f"{typed},number",
            "-o",
            str(tmp_path / f"{len(name)}.csv"),
        )
        assert "error" not in table
    for name in SETTINGS:
        typed = f"`weights.{name}`"
        assert [row["id"] for row in json.loads(runs("ls", "--where", f"{typed}=1", "--json"))] == ["2"]
        found = json.loads(runs("compare", "--by", typed, "--metric", "`A<B.max`", "--max", "--json"))
        assert [group["values"] for group in found["groups"]] == [{typed: 0}, {typed: 1}]


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"filter": "AP@IoU=0.5.max>0.3"}, "no run has a field 'AP@IoU'; did you mean `AP@IoU=0.5."),
        ({"filter": "A<B.max"}, "no run has a field 'A'; did you mean `A<B."),
        ({"columns": ["val/acc"]}, "no run has a field 'val/acc'; did you mean `val/acc,top1."),
        ({"sort": "-`AP@IoU=0.6.max`"}, "no run has a field '`AP@IoU=0.6.max`'; did you mean `AP@IoU=0.5.max`"),
        ({"filter": "precision and recall.max>1"}, "put a name with spaces, commas or operators between backticks"),
    ],
)
def test_suggestions_can_be_typed(where, question, message):
    with open_store(where) as store:
        with pytest.raises(FilterError, match=message):
            store.find(**question)
        assert len(store.find("`AP@IoU=0.5.max`<0.15", columns=["`val/acc,top1.max`"])) == 2
        assert compare(store.find(), "`weights.a<b`", None, "`A<B.max`", mode="max").groups[0].best == 0.2


@pytest.mark.slow
def test_links_of_the_board_keep_odd_names(where):
    app = create_app(lambda: open_store(where), Policy())
    with TestClient(app, base_url="http://127.0.0.1", headers={"origin": "http://127.0.0.1"}) as client:
        fields = client.get("/list/fields").json()["fields"]
        assert {"`weights.a<b`", "`weights.x, y`", "`val/acc,top1.max`", "`odd``s.max`", "`-x.max`"} <= set(fields)
        for name in [field for field in fields if field.startswith("`") and "provenance" not in field]:
            page = client.get("/runs", params={"column": name, "sort": f"-{name}", "where": f"{name}!=None"})
            assert page.status_code == 200, name
            grouped = client.get("/runs", params={"group": f"{name},number"})
            assert grouped.status_code == 200, name
            links = [link.split('"')[0] for link in grouped.text.split('href="')[1:] if "%60" in link.split('"')[0]]
            ours = [link.replace("&amp;", "&") for link in links if "group=" not in link]
            assert ours, name
            assert all(client.get(link).text.count('class="id"><a') == 1 for link in ours), name
            chart = client.get("/workspace/panel", params={"panel": f"scatter({name}, number)"})
            assert chart.status_code == 200, (name, chart.text)
