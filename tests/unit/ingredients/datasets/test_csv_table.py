"""Tables in CSV files: chosen columns, categories, numbers of rows; and the same columns for a trained model."""

import logging
import re

import numpy as np
import pytest
import torch

from sacristan.ingredients import DataError
from sacristan.ingredients.checkpoints.files import load_checkpoint, preparation_of, save_checkpoint
from sacristan.ingredients.data import ingredient
from sacristan.ingredients.datasets.fitted import TableColumns
from sacristan.ingredients.datasets.preparation import prepare, prepare_alike
from sacristan.ingredients.datasets.sources import check_options, load_source

DEFAULTS = ingredient.configurations[0]()
TOWNS = ["size,town,floor,y", "1.5,Rom,2,no", "2.5,Bern,1,yes", "3.5,Rom,,no", "4.5,Bern,10,yes"]


def write_csv(folder, *lines, name="table.csv"):
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def read(folder, *lines, **options):
    return load_source("csv", write_csv(folder, *lines), **options)


def trained_on(folder, *lines, **options):
    """Return what a model was prepared by, as its checkpoint holds it."""
    source = read(folder, *lines, **options)
    prepared = prepare(source, {**DEFAULTS, "name": "csv", "val_fraction": 0.0, "test_fraction": 0.0}, 0)
    path = folder / "last.pt"
    save_checkpoint({"model": {}, "preparation": prepared.preparation.state_dict()}, path)
    return preparation_of(load_checkpoint(path), path)


# the column that numbers the rows


@pytest.mark.parametrize(
    "lines",
    [
        [",a,y", "0,5,1", "1,6,0"],
        [",Unnamed: 0,a,y", "0,0,5,1", "1,1,6,0"],
        ["Unnamed: 0,a,y", "0,5,1", "1,6,0"],
        [",a,y", "Ada,5,1", "Bob,6,0"],
        ["a,y", "Ada,5,1", "Bob,6,0"],
        ["a,y,", "5,1,", "6,0,"],
        ["a,y", "5,1,", "6,0,"],
    ],
)
def test_csv_columns_without_a_name_number_the_rows_or_are_empty(lines, tmp_path):
    source = read(tmp_path, *lines)
    assert (source.features, source.inputs.tolist(), source.targets.tolist()) == (("a",), [[5], [6]], [1, 0])


def test_csv_whose_numbers_of_rows_are_left_out_says_so(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        read(tmp_path, ",a,y", "0,5,1", "1,6,0")
    assert "the first column has no name, so it is dropped as the row number" in caplog.text


def test_csv_column_without_a_name_that_a_model_was_trained_on_stays(tmp_path):
    kept = prepare(read(tmp_path, "first,a,y", "1,5,1", "2,6,0"), {**DEFAULTS, "name": "csv", "val_fraction": 0.0}, 0)
    state = kept.preparation.state_dict() | {"features": ("Unnamed: 0", "a"), "table": None}
    again = load_source(
        "csv", write_csv(tmp_path, ",a,y", "7,5,1"), trained=preparation_of({"preparation": state}, "x")
    )
    assert again.inputs.tolist() == [[7, 5]]


# chosen columns and categories


def test_csv_with_nothing_but_targets_says_that_inputs_are_missing(tmp_path):
    with pytest.raises(DataError, match="has 1 columns, expected inputs and a target"):
        read(tmp_path, "y", "no", "yes", target="y")
    with pytest.raises(DataError, match=r"table.csv has no columns besides y, z; expected at least one input"):
        read(tmp_path, "z,y", "1,2", "3,4", target=["y", "z"])


def test_csv_columns_are_those_chosen_in_their_order(tmp_path):
    source = read(tmp_path, "a,b,c,y", "1,2,x,0", "3,4,x,1", columns=["b", "a"])
    assert (source.features, source.inputs.tolist()) == (("b", "a"), [[2, 1], [4, 3]])
    assert read(tmp_path, "a,b,c,y", "1,2,x,0", columns="b").features == ("b",)
    assert read(tmp_path, "a,b,c,y", "1,2,x,0", columns=["b", "a", "b"]).features == ("b", "a")


def test_csv_categories_become_an_input_for_each_value(tmp_path):
    source = read(tmp_path, *TOWNS, columns=["size", "town"], categorical=["town"])
    assert source.features == ("size", "town=Bern", "town=Rom")
    assert source.inputs.tolist() == [[1.5, 0, 1], [2.5, 1, 0], [3.5, 0, 1], [4.5, 1, 0]]


def test_csv_categories_auto_are_the_columns_of_text(tmp_path):
    assert read(tmp_path, *TOWNS, categorical="auto").features == ("size", "town=Bern", "town=Rom", "floor")
    assert read(tmp_path, "a,y", "1,0", categorical="auto").features == ("a",)


def test_csv_categories_of_numbers_are_named_as_whole_and_a_missing_one_is_nan(tmp_path):
    source = read(tmp_path, *TOWNS, columns=["floor"], categorical="floor")
    assert source.features == ("floor=1", "floor=2", "floor=10")
    assert source.inputs[1].tolist() == [1, 0, 0]
    assert np.isnan(source.inputs[2]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"has text in the columns town; read them as categories \(data.categorical='\[\"town\"\]'\), or choose"),
        ({"categorical": ["twon"]}, r"data.categorical: .* has no input 'twon'; its inputs are size, town, floor"),
        ({"categorical": ["y"]}, r"data.categorical: .* has no input 'y'"),
        ({"columns": ["sise"]}, r"data.columns: .* has no column 'sise'; did you mean 'size'\?"),
        ({"columns": ["size", "y"]}, r"data.columns: got 'y', which is the target; leave it out"),
        ({"columns": []}, r"data.columns: got no column, expected at least one"),
    ],
)
def test_csv_columns_that_do_not_fit_are_refused(options, message, tmp_path):
    with pytest.raises(DataError, match=message):
        read(tmp_path, *TOWNS, **options)


def test_csv_categories_that_are_free_text_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"name of .* has 1,001 values, expected at most 1,000; leave it out"):
        read(tmp_path, "name,y", *(f"n{row},{row % 2}" for row in range(1001)), categorical="auto")


@pytest.mark.parametrize(
    "option", [{"columns": ["a"]}, {"categorical": "auto"}, {"encoding": "codes"}, {"missing": "fill"}]
)
@pytest.mark.parametrize("name", ["digits", "image_folder"])
def test_options_of_columns_are_refused_where_they_are_not_read(name, option):
    (key,) = option
    with pytest.raises(DataError, match=rf"data.{key}: got .*, which data.name={name} does not read; .*csv"):
        check_options(name, **option)


# codes and gaps

GAPS = ["size,town,floor,y", "1,Rom,2,0.5", "2,,,0.5", "3,Bern,1,0.5", "6,Rom,3,0.5"]


def test_csv_categories_become_codes_that_are_not_normalised(tmp_path):
    source = read(tmp_path, *TOWNS[:3], columns=["size", "town"], categorical="auto", encoding="codes")
    assert (source.features, source.table.code_counts) == (("size", "town"), {1: 3})
    assert source.inputs.tolist() == [[1.5, 2], [2.5, 1]]
    trained = trained_on(tmp_path, *TOWNS[:3], columns=["size", "town"], categorical="auto", encoding="codes")
    assert (trained.mean.tolist(), trained.std.tolist()) == ([2, 0], [0.5, 1])


def test_csv_gaps_become_the_mean_of_the_training_part_and_are_told_by_a_further_input(tmp_path):
    config = {**DEFAULTS, "name": "csv", "val_fraction": 0.25, "test_fraction": 0.0, "missing": "fill"}
    source = read(tmp_path, *GAPS, categorical="auto", encoding="codes", missing="fill")
    assert source.features == ("size", "town", "floor", "floor=missing")
    assert source.table.categories == {"town": ("", "Bern", "Rom")}
    prepared = prepare(source, config, 0)
    floors = np.array([2, np.nan, 1, 3])[prepared.indices["train"]]
    by = prepared.preparation
    assert by.mean[2] == pytest.approx(np.nanmean(floors))
    assert prepared.inputs[1, 2] == 0
    assert (prepared.inputs * by.std + by.mean)[:, 1].tolist() == [3, 1, 2, 3]
    assert (prepared.inputs * by.std + by.mean)[:, 3].round(6).tolist() == [0, 1, 0, 0]


def test_csv_gaps_are_refused_unless_they_are_to_be_filled(tmp_path):
    source = read(tmp_path, *GAPS, categorical="auto", encoding="codes")
    with pytest.raises(DataError, match="2 input values are NaN or infinite, in 1 of 4 samples in the columns town, f"):
        prepare(source, {**DEFAULTS, "name": "csv"}, 0)
    infinite = read(tmp_path, "a,y", "inf,0.5", "1,0.5", "2,0.5", missing="fill")
    with pytest.raises(DataError, match="1 input values are NaN or infinite"):
        prepare(infinite, {**DEFAULTS, "name": "csv"}, 0)


def test_other_tables_have_unknown_codes_and_gaps_that_the_model_was_not_trained_on(tmp_path, caplog):
    trained = trained_on(tmp_path, *TOWNS[:3], categorical="auto", encoding="codes", missing="fill")
    other = read(tmp_path, "size,town,floor,y", ",Oslo,2,no", "1,,1,yes", trained=trained)
    assert "the column town holds Oslo, which the checkpoint was not trained on; its code is 0 there" in caplog.text
    alike = prepare_alike(other, trained, {**DEFAULTS, "name": "csv", "path": "other.csv"}, 0)
    assert alike.inputs[:, :2].tolist() == [[0, 0], [-2, 0]]


# the columns of a model


def test_other_tables_are_encoded_as_the_model_was_trained(tmp_path):
    trained = trained_on(tmp_path, *TOWNS[:3], categorical="auto")
    other = read(tmp_path, "floor,y,town,size", "3,yes,Rom,9", "4,no,Rom,8", trained=trained)
    assert other.inputs.tolist() == [[9, 0, 1, 3], [8, 0, 1, 4]]
    alike = prepare_alike(other, trained, {**DEFAULTS, "name": "csv", "path": "other.csv"}, 0)
    assert (alike.inputs * trained.std + trained.mean).round(3).tolist() == other.inputs.tolist()


def test_other_tables_may_have_columns_that_were_not_chosen_and_no_others(tmp_path):
    lines = ["extra,size,y", "1,9,yes"]
    chosen = trained_on(tmp_path, *TOWNS, columns=["size"])
    assert read(tmp_path, *lines, trained=chosen).inputs.tolist() == [[9]]
    with pytest.raises(DataError, match=r"columns are not those .* missing: town, floor; unknown: extra"):
        read(tmp_path, *lines, trained=trained_on(tmp_path, *TOWNS[:3], categorical="town"))


def test_unknown_categories_are_refused_by_evaluate_and_told_by_predict(tmp_path, caplog):
    trained = trained_on(tmp_path, *TOWNS[:3], categorical="auto")
    lines = ["size,town,floor,y", "1,Oslo,2,no"]
    with pytest.raises(DataError, match=r"the column town holds Oslo, which the checkpoint was not trained on; "):
        read(tmp_path, *lines, trained=trained)
    assert read(tmp_path, *lines, trained=trained, needs_targets=False).inputs.tolist() == [[1, 0, 0, 2]]
    assert "holds Oslo, which the checkpoint was not trained on; all inputs of that column are 0" in caplog.text


def test_text_in_a_column_of_numbers_of_a_model_is_refused(tmp_path):
    trained = trained_on(tmp_path, *TOWNS[:3], columns="size")
    with pytest.raises(
        DataError, match=r"has 'large' in the column size, row 1, where the checkpoint was trained on numbers; correct"
    ):
        read(tmp_path, "size,y", "large,no", "1,yes", trained=trained)


def test_checkpoint_of_an_earlier_version_knows_its_columns(tmp_path):
    state = trained_on(tmp_path, "a,b,y", "1,2,0", "3,4,1").state_dict()
    table = {"columns": ("a", "b"), "categories": {}, "verbatim": True, "na_values": ()}
    assert TableColumns(**state.pop("table")) == TableColumns(**table)
    del state["dtype"]
    old = preparation_of({"preparation": state}, "x.pt")
    assert read(tmp_path, "b,y,a", "5,0,6", trained=old).inputs.tolist() == [[6, 5]]
    with pytest.raises(DataError, match=r"columns are not those that the checkpoint was trained on; missing: b"):
        read(tmp_path, "a,y", "5,0", trained=old)


def test_category_of_an_earlier_version_is_named_by_its_number(tmp_path):
    state = trained_on(tmp_path, *ZIPS, categorical="zip").state_dict()
    del state["table"]["verbatim"]
    state["table"]["categories"] = {"zip": ("1234", "94110")}
    old = preparation_of({"preparation": state}, "x.pt")
    assert read(tmp_path, "zip,y", "01234,a", "94110,b", trained=old).inputs.tolist() == [[1, 0], [0, 1]]


def test_preparation_of_a_table_holds_plain_values(tmp_path):
    state = trained_on(tmp_path, *TOWNS[:3], categorical="auto").state_dict()
    torch.save(state, tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True)["table"]["categories"] == {"town": ("Bern", "Rom")}


@pytest.mark.parametrize("labels", ["ab", "01", ["1.0", "2.0"], ["01", "K"], ["True", "False"]])
def test_same_table_is_known_as_the_one_that_was_trained_on(labels, tmp_path):
    lines = ["x,y", *(f"{number},{labels[number % 2]}" for number in range(40))]
    config = DEFAULTS | {"name": "csv", "path": "table.csv", "task": "classification"}
    trained = prepare(read(tmp_path, *lines), config, 0)
    alike = prepare_alike(read(tmp_path, *lines, trained=trained.preparation), trained.preparation, config, 0)
    assert alike.fingerprint == trained.fingerprint
    assert alike.indices["test"].tolist() == trained.indices["test"].tolist()


# cells: a category is its text, a column has one kind, a gap is what the setting names

ZIPS = ["zip,y", "01234,a", "94110,b", "01234,a", "94110,b"]


@pytest.mark.parametrize("encoding", ["one_hot", "codes"])
def test_row_is_encoded_alike_whatever_else_stands_in_the_file(encoding, tmp_path, caplog):
    trained = trained_on(tmp_path, *ZIPS, categorical="zip", encoding=encoding)
    assert trained.table.categories == {"zip": ("01234", "94110")}
    alone = read(tmp_path, "zip", "01234", "94110", trained=trained, needs_targets=False)
    assert "holds" not in caplog.text
    beside = read(tmp_path, "zip", "01234", "94110", "K1A", "", trained=trained, needs_targets=False)
    assert beside.inputs[:2].tolist() == alone.inputs.tolist()
    assert "the column zip holds K1A, which" in caplog.text


def test_categories_of_a_long_file_are_not_guessed_part_by_part(tmp_path):
    lines = [f"{number % 7},0" for number in range(300_000)] + ["K,1"] * 10
    assert read(tmp_path, "a,y", *lines, categorical="a").features == (*(f"a={n}" for n in range(7)), "a=K")[-8:]


@pytest.mark.parametrize(
    ("labels", "others", "expected"),
    [
        (["01", "02", "K"], ["01", "02"], [0, 1]),
        (["1.0", "2.0", "top"], ["1.0", "2.0"], [0, 1]),
        (["1", "2", "3"], ["1.0", "3", ""], [0, 2, -1]),
        (["True", "False", "True"], ["True", "", "False"], [1, -1, 0]),
    ],
)
def test_label_is_one_class_whatever_else_stands_in_the_file(labels, others, expected, tmp_path):
    lines = ["a,y", *(f"{number},{label}" for number, label in enumerate(labels * 2))]
    trained = trained_on(tmp_path, *lines)
    config = {**DEFAULTS, "name": "csv", "path": "other.csv"}
    other = read(
        tmp_path, "a,y", *(f"{n},{label}" for n, label in enumerate(others)), trained=trained, needs_targets=False
    )
    assert prepare_alike(other, trained, config, 0, needs_targets=False).targets.tolist() == expected


AGES = [f"{20 + number % 40}.5,{number % 2}" for number in range(200)]


@pytest.mark.parametrize("categorical", ["auto", None])
@pytest.mark.parametrize("stray", ["?", "-", "n.a."])
def test_column_that_is_nearly_all_numbers_is_refused_with_the_values_to_blame(categorical, stray, tmp_path):
    lines = ["age,y", *AGES, f"{stray},1", f"{stray},0"]
    message = rf"the column age holds numbers in 200 rows, and '{re.escape(stray)}' in 2; correct those rows, list what"
    with pytest.raises(DataError, match=rf"{message}.*data.na_values='\[\"{re.escape(stray)}\"\]'"):
        read(tmp_path, *lines, categorical=categorical)
    source = read(tmp_path, *lines, categorical=categorical, missing="fill", na_values=[stray])
    assert source.features == ("age", "age=missing")
    assert source.inputs[-1].tolist()[1] == 1
    assert read(tmp_path, *lines, categorical="age").features[0].startswith("age=")


def test_target_that_is_nearly_all_numbers_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"data.target: the column y holds numbers in 200 rows, and '\?' in 1; correct"):
        read(tmp_path, "a,y", *(f"1,{number}.5" for number in range(200)), "1,?")


def test_few_numbers_beside_a_text_are_categories(tmp_path):
    assert read(tmp_path, "a,y", *["1,0", "2,1"] * 50, "more,1", categorical="auto").features == (
        "a=1",
        "a=2",
        "a=more",
    )


@pytest.mark.parametrize("form", ["3,{:02}", "1,{:03}.0", "2026-01-{:02}T00:00"])
def test_column_of_text_that_differs_in_nearly_every_row_is_told(form, tmp_path, caplog):
    read(tmp_path, "a,y", *(f'"{form.format(number)}",{number % 2}' for number in range(60)), categorical="auto")
    assert "the column a has 60 categories in 60 rows, such as '" in caplog.text
    assert "leave the column out with data.columns" in caplog.text


@pytest.mark.parametrize(("name", "first", "step"), [("n", 100, 1), ("patient_id", 7, 3), ("ID", 1, 2)])
def test_column_that_looks_like_an_id_is_told(name, first, step, tmp_path, caplog):
    lines = [f"{name},b,y", *(f"{first + step * row},{row * 0.5 % 9},{row % 2}" for row in range(60))]
    read(tmp_path, *lines)
    assert caplog.text.count("looks like an id") == 1
    assert f"the column {name} looks like an id" in caplog.text
    caplog.clear()
    read(tmp_path, *lines, columns=[name, "b"])
    read(tmp_path, *[line.replace(f"{name},b", "width,b") for line in lines[:1]], *lines[1:50])
    read(tmp_path, "width,b,y", *(f"{row * row},{row * 0.5},{row % 2}" for row in range(60)))
    assert "looks like an id" not in caplog.text


def test_gap_is_an_empty_cell_and_what_the_setting_names(tmp_path):
    lines = ["a,y", "NA,1", "None,0", ",1", "null,0"]
    assert read(tmp_path, *lines, categorical="a").features == ("a=NA", "a=None", "a=null")
    trained = trained_on(tmp_path, *lines, categorical="a", missing="fill", na_values=["null"])
    assert trained.table.categories == {"a": ("", "NA", "None")}
    again = read(tmp_path, "a,y", "null,1", "None,0", trained=trained)
    assert again.inputs.tolist() == [[1, 0, 0], [0, 0, 1]]


def test_csv_without_a_header_is_noticed(tmp_path):
    with pytest.raises(DataError, match=r"the first row of .* holds only numbers \(5.1, 3.5, 1\), expected the names"):
        read(tmp_path, "5.1,3.5,1", "4.9,3.0,0")
    assert read(tmp_path, "0,1,2", "5,6,1", "7,8,0").features == ("0", "1")


def test_texts_of_a_csv_stay_as_they_stand(tmp_path):
    path = write_csv(tmp_path, "text,label", "NA,a", "None,b", "007,a")
    assert load_source("text", path).inputs.words == [["na"], ["none"], ["007"]]
