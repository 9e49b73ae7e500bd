import json
import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sacristan.runs.query.index import fields
from sacristan.runs.query.index.fields import (
    NOT_HELD,
    OF_CONFIG,
    OF_INFO,
    OF_RUN,
    OF_SUMMARY,
    decode,
    encode,
    fields_of,
    read_documents,
)


def read(folder, **documents):
    for name, content in documents.items():
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        (folder / f"{name}.json").write_bytes(data)
    found, problems = fields_of(read_documents(folder))
    return [{name: decode(*value) for name, value in part.items()} for part in found], problems


def test_documents_are_flattened_under_dotted_names(tmp_path):
    found, problems = read(
        tmp_path,
        run={"status": "COMPLETED", "experiment": {"name": "e", "sources": [["a", "b"]]}, "fail_trace": ["x"]},
        config={"lr": 0.1, "optimizer": {"name": "SGD", "args": {}}, "layers": [1, {"a": None}], "a.b": True},
        summary={"val/acc.top1": {"max": 1.0, "max_step": 3}},
        info={"note": {"x": 1}},
    )
    assert found[OF_RUN] == {"status": "COMPLETED", "experiment.name": "e"}
    config = {"lr": 0.1, "optimizer.name": "SGD", "optimizer.args": {}, "layers": [1, {"a": None}], "a.b": True}
    assert found[OF_CONFIG] == config
    assert found[OF_SUMMARY] == {"val/acc.top1.max": 1.0, "val/acc.top1.max_step": 3}
    assert found[OF_INFO] == {"info.note.x": 1}
    assert problems == []


plain = (
    st.none()
    | st.booleans()
    | st.integers(-(10**34) + 1, 10**34 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
)


@given(plain)
def test_encoded_value_comes_back_with_its_type(value):
    back = decode(*encode(value))
    if isinstance(value, str):
        value = value.encode("utf-8", "backslashreplace").decode()
    assert back == value
    assert type(back) is type(value)


@given(st.lists(plain, max_size=4))
def test_encoded_list_comes_back_as_it_was_or_not_at_all(value):
    assert decode(*encode(value)) in (value, NOT_HELD)
    assert decode(*encode([1, [2, None, "a"]])) == [1, [2, None, "a"]]


@pytest.mark.parametrize(("one", "other"), [([1], [1.0]), ([0.0], [-0.0]), ([[2]], [[2.0]]), ([1e22], [10**22])])
def test_equal_lists_are_encoded_alike(one, other):
    assert encode(one)[1] == encode(other)[1]
    assert encode([1]) != encode([True])


@pytest.mark.parametrize("value", [10**34 - 1, 10**34, -(10**400)])
def test_integer_of_any_length_comes_back(value):
    assert decode(*encode(value)) == value


def test_nan_comes_back():
    assert math.isnan(decode(*encode(math.nan)))


def test_long_text_is_held_and_a_long_list_told_apart_from_others():
    assert decode(*encode("a" * 10_000)) == "a" * 10_000
    one, other = encode([*range(10_000), 1]), encode([*range(10_000), 2])
    assert decode(*one) is NOT_HELD
    assert one != other
    assert len(one[1]) < 100


def test_values_of_numpy_are_taken_for_what_they_are():
    np = pytest.importorskip("numpy")
    assert encode(np.float64(0.5)) == encode(0.5)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"status": ', "run.json is not JSON"),
        (b"", "run.json is not JSON"),
        (b'{"x": "\xff"}', "run.json is not JSON"),
        (
            b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
            "run.json is not JSON (lists and objects are nested more than 200 levels deep)",
        ),
        (b"[1]", "run.json: got list, expected an object"),
        (b"1" * 5000, "run.json is not JSON"),
        (b" " * (fields.MAX_FILE_BYTES + 1), "expected at most 16,777,216"),
    ],
)
def test_unreadable_run_is_told_with_its_reason(tmp_path, content, reason):
    found, problems = read(tmp_path, run=content)
    assert found == [{}, {}, {}, {}]
    assert len(problems) == 1
    assert reason in problems[0]


def test_missing_run_is_told(tmp_path):
    assert read(tmp_path, config={})[1] == ["run.json is missing: the run is just being made, or this is not a run"]


def test_pipe_and_folder_in_place_of_a_file_are_told(tmp_path):
    os.mkfifo(tmp_path / "run.json")
    (tmp_path / "config.json").mkdir()
    assert read(tmp_path)[1] == [
        "run.json cannot be read (it is no regular file)",
        "config.json cannot be read (Is a directory)",
    ]


def test_broken_config_leaves_the_run_readable(tmp_path):
    found, problems = read(tmp_path, run={"status": "FAILED"}, config=b"{")
    assert found[OF_RUN] == {"status": "FAILED"}
    assert problems[0].startswith("config.json is not JSON")


def test_nesting_that_json_allows_becomes_text_below_a_depth(tmp_path):
    deep = b'{"a":' * 190 + b"1" + b"}" * 190
    found, problems = read(tmp_path, run={"status": "FAILED"}, config=deep)
    assert [name.count(".") for name in found[OF_CONFIG]] == [fields.MAX_DEPTH]
    assert problems == []


def test_too_many_entries_and_endless_names_are_bounded(tmp_path):
    many = {f"k{i}": i for i in range(fields.MAX_FIELDS + 5)}
    found, problems = read(tmp_path, run={"status": "FAILED"}, config=many, info={"x" * 1000: 1})
    assert len(found[OF_CONFIG]) == fields.MAX_FIELDS
    assert found[OF_INFO] == {}
    assert [problem.split()[0] for problem in problems] == ["config.json", "info.json"]


def test_odd_keys_are_kept_and_surrogates_written_out(tmp_path):
    found, _ = read(tmp_path, run={"s": 1}, config=b'{"": 1, " $\\u0000\'\\"": 2, "\\ud800": "\\ud800"}')
    assert found[OF_CONFIG] == {"": 1, " $\0'\"": 2, "\\ud800": "\\ud800"}


def test_sacred_metrics_are_summarized_up_to_a_size(tmp_path):
    points = {"loss": {"values": [3.0, float("nan"), 1.0], "steps": [0, 1, 2], "timestamps": ["", "", ""]}}
    odd = {"text": {"values": ["a"], "steps": [0]}, "none": 1, "huge": {"values": [2**70], "steps": [2**70]}}
    found, problems = read(tmp_path, run={"status": "COMPLETED"}, metrics={**points, **odd})
    assert found[OF_SUMMARY]["loss.min"] == 1.0
    assert found[OF_SUMMARY]["loss.last_step"] == 2
    assert {name.partition(".")[0] for name in found[OF_SUMMARY]} == {"loss"}
    assert problems == []
    found, problems = read(tmp_path, metrics=b" " * (fields.MAX_METRICS_BYTES + 1))
    assert found[OF_SUMMARY] == {}
    assert found[OF_RUN] == {"status": "COMPLETED"}
    assert "it has 2,097,153 bytes" in problems[0]
    found, problems = read(tmp_path, summary={"loss": {"min": 0.5}})
    assert (found[OF_SUMMARY], problems) == ({"loss.min": 0.5}, [])
