"""A table of one's own, with categories and gaps, to predictions for new rows."""

import csv
from pathlib import Path

import pytest
import torch

from sacristan.experiments import tabular
from sacristan.ingredients import DataError
from sacristan.ingredients.checkpoints.files import load_checkpoint

BEST = "my_runs/1/checkpoints/best.pt"
ROWS = [f"{size}.5,{town},{size % 3 or ''},{'dear' if (town == 'Rom') ^ (size > 9) else 'cheap'}" for size, town in
        zip(range(20), ["Rom", "Bern", "", "Rom"] * 5, strict=True)]  # fmt: skip


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Write a table, and run a command on it, or on another."""
    monkeypatch.chdir(tmp_path)

    def run(command, *rows, header="size,town,floor,rent", **settings):
        Path("table.csv").write_text("\n".join([header, *rows]) + "\n")
        small = {"data.batch_size": 7, "data.path": "table.csv", "model.options.hidden": [4], "epochs": 1}
        return tabular.ex.run(command, config_updates=small | settings)

    return run


def predict(run, *rows, **settings):
    run("predict", *rows, **{"checkpoint.path": BEST, **settings})
    with Path("my_runs/2/predictions.csv").open() as stream:
        return list(csv.DictReader(stream))


def test_new_rows_with_gaps_and_unknown_values_in_any_order_are_predicted(run):
    run("main", *ROWS)
    found = predict(run, "Rom,,3.5", "Oslo,2,", ",1,4", header="town,floor,size")
    assert [row["index"] for row in found] == ["0", "1", "2"]
    assert all(row["prediction"] in ("cheap", "dear") for row in found)
    assert sum(float(found[0][f"p({name})"]) for name in ("cheap", "dear")) == pytest.approx(1, abs=1e-5)


def test_numbers_are_predicted_in_their_own_unit(run):
    run("main", *(f"{size},Rom,1,{1000 + size}.5" for size in range(30)))
    (row,) = predict(run, "3,Rom,1", header="size,town,floor")
    assert 900 < float(row["prediction"]) < 1200


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        ("size,floor", ["1,2"], r"data\.path=table\.csv: the columns are not those .*; missing: town; "),
        ("size,town,floor", ["1,Rom,2", "big,Rom,2"], r"has 'big' in the column size, row 2, where .* numbers"),
    ],
)
def test_new_table_that_does_not_fit_is_refused(run, header, rows, message):
    run("main", *ROWS)
    with pytest.raises(DataError, match=message):
        predict(run, *rows, header=header)


def test_filling_gaps_without_means_is_refused(run):
    with pytest.raises(DataError, match=r"data\.missing=fill: got data\.normalize=none, expected standard"):
        run("main", *ROWS, **{"data.normalize": "none"})


def test_embedding_of_a_value_outside_of_the_training_part_is_that_of_an_unknown_one(run):
    rows = [f"{size},{'Rom' if size % 2 else 'Bern'},1,{size % 2}" for size in range(20)]
    run("main", *rows, "20,Oslo,1,0", **{"data.split_seed": 5, "data.stratify": False, "epochs": 3})
    towns = load_checkpoint(Path(BEST))["model"]["embeddings.0.weight"]
    assert [bool(row.any()) for row in towns] == [False, True, False, True]


def test_network_embeds_codes_and_takes_numbers_as_they_are():
    from sacristan.ingredients.datasets.fitted import TableColumns

    table = TableColumns(("a", "b"), {"a": ("x", "y", "z")}, encoding="codes")
    prepared = type("Prepared", (), {"table": table})
    made = tabular.network((2,), 5, prepared)
    assert made.embeddings[0].weight.shape == (4, tabular.embedding_size(3)) == (4, 3)
    assert made(torch.tensor([[3.0, 0.5], [0.0, -1.0]])).shape == (2, 5)
    assert tabular.embedding_size(10_000) == 50
