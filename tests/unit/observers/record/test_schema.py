import math

import numpy as np

from sacristan.observers import read_metrics
from sacristan.observers.record import schema
from sacristan.observers.record.journal import Journal
from sacristan.observers.record.points import POINT_BYTES, summarize
from sacristan.observers.record.points.intact_points import read_points
from sacristan.observers.record.schema import NAMES, MetricNames, read_json_lines, read_names


def ticks(count):
    return np.arange(count, dtype=np.uint32)


def test_point_takes_24_bytes():
    assert POINT_BYTES == 24


def test_read_metrics_of_an_empty_folder_is_empty(tmp_path):
    assert read_metrics(tmp_path) == {}
    assert len(read_points(tmp_path)) == 0


def test_read_metrics_gives_back_what_was_logged(tmp_path):
    journal = Journal(tmp_path)
    journal.points.add_batch("a", [0, 1, 5], [0.5, math.nan, -math.inf], ticks(3))
    journal.points.add_batch("b", [2**40], [3], ticks(1))
    journal.points.add_batch("a", [6], [1e-300], ticks(1))
    journal.close()
    found = read_metrics(tmp_path)
    assert found["a"].steps.tolist() == [0, 1, 5, 6]
    assert np.array_equal(found["a"].values, [0.5, math.nan, -math.inf, 1e-300], equal_nan=True)
    assert found["b"].steps.tolist() == [2**40]
    assert found["a"].times.tolist() == [0.0, 0.01, 0.02, 0.0]


def test_read_metrics_merges_int_and_float_steps_in_the_order_of_logging(tmp_path):
    journal = Journal(tmp_path)
    journal.points.add_batch("a", [0, 1], [1, 2], ticks(2))
    journal.points.add_batch("a", [1.5], [3], ticks(1))
    journal.points.add_batch("a", [2], [4], ticks(1))
    journal.close()
    found = read_metrics(tmp_path)["a"]
    assert found.steps.tolist() == [0, 1, 1.5, 2]
    assert found.values.tolist() == [1, 2, 3, 4]


def test_read_json_lines_passes_over_a_torn_tail(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n{"a"')
    assert list(read_json_lines(path)) == [{"a": 1}, {"a": 2}]


def test_summarize_leaves_nan_out_of_extremes_and_infinities_out_of_the_mean():
    values = np.array([3.0, math.nan, -1.0, math.inf, 7.0, -1.0, 2.0])
    assert summarize(values, np.arange(7) * 10) == {
        "count": 7,
        "first": 3.0,
        "finite": 5,
        "mean": 2.0,
        "last": 2.0,
        "last_step": 60,
        "min": -1.0,
        "min_step": 20,
        "max": math.inf,
        "max_step": 30,
    }


def test_metric_names_parse_what_is_new_in_the_file(tmp_path, monkeypatch):
    lines = [b'{"id": %d, "name": "m%d"}\n' % (number, number % 3) for number in range(6)]
    lines[3] = b'{"id": 3, "name": "m0", "steps": "float"}\n'
    parsed, parse = [], schema.parse_json
    monkeypatch.setattr(schema, "parse_json", lambda text: parsed.append(text) or parse(text))
    names = MetricNames(tmp_path)
    assert names.by_id == {}
    path = tmp_path / NAMES
    path.write_bytes(b"".join(lines[:3]) + lines[3][:9])
    assert names.of("m0") == {0: ("m0", False)}
    assert names.of("m3") == {}
    before = names.by_id
    path.write_bytes(b"".join(lines))
    assert names.of("m0") == {0: ("m0", False), 3: ("m0", True)}
    assert names.by_id.keys() == set(range(6))
    assert before.keys() == {0, 1, 2}
    assert [line + b"\n" for line in parsed] == lines
    # Rewound, and longer than before, without and with another inode.
    for rewound in (b'{"id": 0, "name": "other"}\n', b'{"id": 0, "name": "another", "more": "%s"}\n' % (b"x" * 300)):
        path.unlink()
        path.write_bytes(rewound)
        assert names.by_id == read_names(tmp_path)
        assert len(names.by_id) == 1
    path.unlink()
    assert names.by_id == {}
    assert names.of("other") == {}
