"""CSV files in other forms: read by arguments of pandas, which the message of a failed read names."""

import bz2
import gzip
import lzma
import re
import zipfile

import numpy as np
import pytest

from sacristan.configs import Map
from sacristan.ingredients import DataError
from sacristan.ingredients.checkpoints.files import load_checkpoint, preparation_of, save_checkpoint
from sacristan.ingredients.data import check_config, ingredient
from sacristan.ingredients.datasets.preparation import prepare, prepare_alike
from sacristan.ingredients.datasets.sources import kind_of, load_source, survey

DEFAULTS = ingredient.configurations[0]()
HEADER = ["größe", "preis", "ort", "ziel"]
ROWS = [(k + 0.5, 1000.25 + 3 * k, "Köln" if k % 3 else "Bern", k % 2) for k in range(30)]


def text(sep=",", decimal=".", thousands="", header=HEADER, above=()):
    def number(value):
        return f"{value:,.2f}".translate(str.maketrans({".": decimal, ",": thousands}))

    rows = [sep.join([number(a), number(b), town, str(y)]) for a, b, town, y in ROWS]
    return "\n".join([*above, *([sep.join(header)] if header else []), *rows]) + "\n"


def packed(pack, content=None):
    return pack((content or text()).encode())


def in_zip(content, path="/tmp/unused"):
    import io

    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("table.csv", content)
    return stream.getvalue()


# Bytes of the same table, the arguments that read it, and the name of the file.
FORMS = {
    "tabs": (text("\t").encode(), {"sep": "\t"}, "t.csv"),
    "tabs typed in a shell": (text("\t").encode(), {"sep": r"\t"}, "t.csv"),
    "tsv": (text("\t").encode(), {}, "t.tsv"),
    "tsv.gz": (packed(gzip.compress, text("\t")), {}, "t.tsv.gz"),
    "semicolons": (text(";").encode(), {"sep": ";"}, "t.csv"),
    "semicolons and decimal commas": (text(";", ",").encode(), {"sep": ";", "decimal": ","}, "t.csv"),
    "thousands": (text(";", ",", ".").encode(), {"sep": ";", "decimal": ",", "thousands": "."}, "t.csv"),
    "bars": (text("|").encode(), {"sep": "|"}, "t.csv"),
    "pattern": (text(" ; ").encode(), {"sep": r"\s*;\s*"}, "t.csv"),
    "latin-1": (text().encode("latin-1"), {"encoding": "latin-1"}, "t.csv"),
    "utf-8 with its mark": (text().encode("utf-8-sig"), {}, "t.csv"),
    "utf-16": (text().encode("utf-16"), {"encoding": "utf-16"}, "t.csv"),
    "utf-16 without its mark": (text().encode("utf-16-le"), {"encoding": "utf-16-le"}, "t.csv"),
    "Excel": (text("\t", ",").encode("utf-16"), {"sep": "\t", "decimal": ",", "encoding": "utf-16"}, "t.csv"),
    "gz": (packed(gzip.compress), {}, "t.csv.gz"),
    "bz2": (packed(bz2.compress), {}, "t.csv.bz2"),
    "xz": (packed(lzma.compress), {}, "t.csv.xz"),
    "zip": (in_zip(text()), {}, "t.csv.zip"),
    "gz by another name": (packed(gzip.compress), {"compression": "gzip"}, "t.csv"),
    "lines above": (text(above=["made by a device", "on Monday"]).encode(), {"skiprows": 2}, "t.csv"),
    "lines below": ((text() + "total,1\n").encode(), {"skipfooter": 1}, "t.csv"),
    "comments": (text(above=["# made by a device"]).encode(), {"comment": "#"}, "t.csv"),
    "no header": (text(header=None).encode(), {"header": None, "names": HEADER}, "t.csv"),
}
# Forms that pandas reads without any argument.
KNOWN = ("tsv", "tsv.gz", "utf-8 with its mark", "gz", "bz2", "xz", "zip")
# Forms whose message names the fault, but no argument.
SILENT = ("lines below", "no header", "pattern")


def write(folder, form):
    content, csv, name = FORMS[form]
    (folder / name).write_bytes(content)
    return str(folder / name), csv


def read(path, csv, **options):
    return load_source(kind_of(path), path, csv=csv, categorical="ort", **options)


def plain(folder):
    (folder / "plain.csv").write_text(text(), encoding="utf-8")
    return load_source("csv", str(folder / "plain.csv"), categorical="ort")


@pytest.mark.parametrize("form", FORMS)
def test_csv_of_any_form_is_the_same_table(form, tmp_path):
    source, expected = read(*write(tmp_path, form)), plain(tmp_path)
    assert (source.features, source.targets.tolist()) == (expected.features, expected.targets.tolist())
    np.testing.assert_array_equal(source.inputs, expected.inputs)


@pytest.mark.parametrize("form", [form for form in FORMS if form not in (*KNOWN, *SILENT)])
def test_message_of_a_failed_read_names_the_arguments_that_mend_it(form, tmp_path):
    path, csv = write(tmp_path, form)
    given = {}
    while given.keys() != csv.keys():
        with pytest.raises(DataError) as caught:
            read(path, given, target="ziel")
        found = re.findall(r"data\.csv\.(\w+)=([^ ',;]+|[,;])", str(caught.value))
        new = {name: int(value) if value.isdigit() else value for name, value in found if name not in given}
        assert new, str(caught.value)
        assert new.keys() <= csv.keys(), str(caught.value)
        given |= new
    np.testing.assert_array_equal(read(path, given, target="ziel").inputs, plain(tmp_path).inputs)


@pytest.mark.parametrize("form", ["thousands", "Excel", "no header", "gz by another name"])
def test_checkpoint_keeps_the_arguments_for_other_files(form, tmp_path):
    path, csv = write(tmp_path, form)
    source = read(path, csv)
    made = prepare(source, DEFAULTS | {"name": "csv", "path": path, "csv": csv}, 0)
    state = tmp_path / "last.pt"
    save_checkpoint({"model": {}, "preparation": made.preparation.state_dict()}, state)
    kept = preparation_of(load_checkpoint(state), state)
    again = load_source("csv", path, trained=kept)
    found = prepare_alike(again, kept, DEFAULTS | {"name": "csv", "path": path}, 0)
    assert found.indices["test"].tolist() == made.indices["test"].tolist()
    # A file in the usual form is read by arguments that say so.
    usual = {"sep": ",", "decimal": ".", "thousands": None, "encoding": "utf-8", "compression": "infer"}
    (tmp_path / "usual.csv").write_text(text(header=None if form == "no header" else HEADER), encoding="utf-8")
    usual = {name: value for name, value in usual.items() if name in csv and value is not None}
    if form != "thousands":
        other = load_source("csv", str(tmp_path / "usual.csv"), trained=kept, csv=usual)
        np.testing.assert_array_equal(other.inputs, source.inputs)


def test_texts_in_a_csv_are_read_by_the_arguments(tmp_path):
    rows = "\n".join(["text;label", *(f"schön, {k};{k % 2}" for k in range(20))])
    (tmp_path / "texts.csv").write_bytes(rows.encode("latin-1"))
    csv = {"sep": ";", "encoding": "latin-1"}
    source = load_source("text", str(tmp_path / "texts.csv"), csv=csv)
    assert source.inputs.words[3][0] == "schön"
    with pytest.raises(DataError, match=r"write data\.csv\.encoding=latin-1"):
        load_source("text", str(tmp_path / "texts.csv"))


def test_description_of_a_file_takes_the_arguments(tmp_path):
    path, csv = write(tmp_path, "thousands")
    rows = {row[0]: row for row in survey("csv", path, csv)}
    assert rows["preis"][1:] == ["numbers", 30, 0, 30, "1000.25 to 1087.25"]


@pytest.mark.parametrize(
    ("csv", "message"),
    [
        ({"sepp": ";"}, "data.csv.sepp: is no argument for reading a csv; did you mean data.csv.sep?"),
        ({"seperator": ";"}, "data.csv.seperator: .*did you mean data.csv.sep?"),
        ({"encodign": "x"}, "did you mean data.csv.encoding?"),
        ({"delimiter": ";"}, "data.csv.delimiter: is no argument for reading a csv; use data.csv.sep"),
        ({"na_values": ["-"]}, "use data.na_values"),
        ({"usecols": ["a"]}, "use data.columns"),
        ({"foo": 1}, "there are: sep, decimal"),
        ({"sep": 5}, "data.csv.sep: got 5, expected text, as pandas.read_csv does"),
        ({"decimal": ",,"}, "data.csv.decimal: got ',,', expected a single character"),
        ({"skiprows": -1}, "data.csv.skiprows: got -1, expected a whole number or a list of them"),
        ({"skiprows": [1, "a"]}, "data.csv.skiprows: got"),
        ({"header": True}, "data.csv.header: got True, expected None or a whole number"),
        ({"names": "a"}, "data.csv.names: got 'a', expected a list of names"),
        ({"doublequote": "no"}, "data.csv.doublequote: got 'no', expected True or False"),
        ({"encoding": "latin-9000"}, "data.csv.encoding: unknown encoding: latin-9000; expected a name .* latin-1"),
        ({"encoding_errors": "drop"}, "data.csv.encoding_errors: unknown error handler name 'drop'; .* replace"),
        ({"compression": "gz"}, "data.csv.compression: got 'gz', expected one of: infer, gzip"),
        ({"on_bad_lines": "drop"}, "data.csv.on_bad_lines: got 'drop', expected one of: error, warn, skip"),
        ({"thousands": "."}, "data.csv.thousands: got '.', which is the decimal mark"),
    ],
)
def test_arguments_are_checked_before_anything_is_read(csv, message):
    with pytest.raises(DataError, match=message):
        check_config(Map(DEFAULTS | {"name": "csv", "path": "configs/iris.csv", "csv": csv}))


def test_arguments_that_fit_are_accepted():
    for _, csv, _ in FORMS.values():
        check_config(Map(DEFAULTS | {"name": "csv", "path": "configs/iris.csv", "csv": csv}))


# numbers with other marks


def load(folder, *lines, **options):
    (folder / "n.csv").write_text("\n".join(lines), encoding="utf-8")
    return load_source("csv", str(folder / "n.csv"), **options)


@pytest.mark.parametrize(
    ("cells", "advice"),
    [
        (["1,5", "2", "-3,25"], "'data.csv.decimal=,'"),
        (["1.000,5", "2", "3,25"], "'data.csv.thousands=.' 'data.csv.decimal=,'"),
        (["1 000,5", "2", "3,25"], "'data.csv.thousands= ' 'data.csv.decimal=,'"),
        (["1'000.5", "2", "3.25"], '"data.csv.thousands=\'"'),
        (["1,000", "2,500"], "'data.csv.decimal=,' or 'data.csv.thousands=,'"),
        (["1,000.5", "2"], "'data.csv.thousands=,'"),
    ],
)
def test_numbers_with_other_marks_are_told(cells, advice, tmp_path):
    lines = ["a,b,y", *(f'"{cell}",1,{k % 2}' for k, cell in enumerate(cells))]
    with pytest.raises(
        DataError, match=re.escape(f"such as {cells[0]!r}; write {advice}, or, if it is text, name it in")
    ):
        load(tmp_path, *lines)
    assert len(load(tmp_path, *lines, categorical="a").features) == len(cells) + 1
    csv = dict(re.findall(r"data\.csv\.(\w+)=(.)", advice)[:2])
    if " or " not in advice:
        assert load(tmp_path, *lines, csv=csv).inputs[1, 0] == 2


@pytest.mark.parametrize("cells", [["a,b", "c"], ["2024-01-01", "1,5,6"], ["1,5", "x", "y"]])
def test_other_texts_are_no_numbers(cells, tmp_path):
    with pytest.raises(DataError, match="has text in the columns a; read them as categories"):
        load(tmp_path, "a,b,y", *(f'"{cell}",1,{k % 2}' for k, cell in enumerate(cells)))


def test_number_with_the_wrong_mark_is_no_number(tmp_path):
    lines = ["a;b;y", *(f"{k},5;1;{k % 2}" for k in range(40)), "1.5;1;0"]
    with pytest.raises(DataError, match=r"the column a holds numbers in 40 rows, and '1\.5' in 1"):
        load(tmp_path, *lines, csv={"sep": ";", "decimal": ","})
    source = load(tmp_path, *lines, csv={"sep": ";", "decimal": ",", "thousands": "."})
    assert source.inputs[-1].tolist() == [15, 1]


def test_target_of_numbers_with_other_marks_is_told(tmp_path):
    lines = ["a;y", *(f"{k};{k},5" for k in range(40))]
    csv = {"sep": ";"}
    with pytest.raises(
        DataError, match=r"data\.target: the column y holds numbers such as '0,5'; write 'data.csv.decimal=,'"
    ):
        load(tmp_path, *lines, csv=csv)
    assert load(tmp_path, *lines, csv={**csv, "decimal": ","}).targets[:2].tolist() == [0.5, 1.5]
    assert load(tmp_path, *lines, csv=csv, task="classification").targets[0] == "0,5"


def test_new_file_with_other_marks_than_that_of_the_training_is_told(tmp_path):
    source = load(tmp_path, "a,y", *(f"{k}.5,{k % 2}" for k in range(20)))
    by = prepare(source, DEFAULTS | {"name": "csv"}, 0).preparation
    with pytest.raises(DataError, match=r"such as '1,5'; write 'data\.csv\.decimal=,'"):
        load(tmp_path, "a", '"1,5"', "2", trained=by, needs_targets=False)
    with pytest.raises(DataError, match=r"has one column, 'a;b'; write 'data\.csv\.sep=;' 'data\.csv\.decimal=,'"):
        load(tmp_path, "a;b", "1,5;2", "2;3", trained=by, needs_targets=False)
    csv = {"decimal": ","}
    with pytest.raises(DataError, match="has 'x' in the column a, row 2, where the checkpoint was trained on numbers"):
        load(tmp_path, "a", '"1,5"', "x", trained=by, needs_targets=False, csv=csv)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["a,b", "1,5,2,5", "3,5,4,5"],
            "the rows of .* have 2 more cells than the header, which names 2 columns; name",
        ),
        (["a,b", "1,5,2", "1,6,2"], "the rows of .* have 1 more cells than the header"),
    ],
)
def test_rows_that_are_longer_than_the_header_are_refused(lines, message, tmp_path):
    with pytest.raises(DataError, match=message):
        load(tmp_path, *lines)


def test_damaged_archive_is_refused(tmp_path):
    (tmp_path / "t.csv.gz").write_bytes(packed(gzip.compress)[:200])
    with pytest.raises(DataError, match="cannot be read as CSV: Compressed file ended"):
        read(str(tmp_path / "t.csv.gz"), {})
    (tmp_path / "t.csv.gz").write_text(text())
    with pytest.raises(DataError, match="cannot be read as CSV: Not a gzipped file"):
        read(str(tmp_path / "t.csv.gz"), {})
