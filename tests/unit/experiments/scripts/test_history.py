"""Steps of what a script logs, as W&B counts them; the expected rows are those of wandb 0.31 offline."""

from __future__ import annotations

import math
import threading

import pytest

from sacristan.experiments.scripts.history import History
from sacristan.ingredients import ConfigError


class Rows:
    """Collects the points that a history writes, by metric."""

    def __init__(self):
        self.points = {}
        self.history = History(self.write)

    def write(self, values, step):
        for name, value in values.items():
            self.points.setdefault(name, []).append((step, value))


@pytest.fixture
def rows():
    return Rows()


def test_log_without_step_counts(rows):
    rows.history.log({"loss": 1.0})
    rows.history.log({"loss": 2.0, "other": 1})
    assert rows.points == {"loss": [(0, 1.0), (1, 2.0)], "other": [(1, 1)]}
    assert rows.history.step == 2


def test_log_without_commit_adds_to_the_next_row(rows):
    rows.history.log({"part": 1}, commit=False)
    rows.history.log({"loss": 0.5})
    rows.history.log({"loss": 0.4})
    assert rows.points == {"part": [(0, 1)], "loss": [(0, 0.5), (1, 0.4)]}


def test_log_with_step_leaves_its_row_open(rows):
    rows.history.log({"a": 1}, step=10)
    rows.history.log({"b": 2}, step=10)
    rows.history.log({"after": 3})
    rows.history.log({"after": 4})
    assert rows.points == {"a": [(10, 1)], "b": [(10, 2)], "after": [(10, 3), (11, 4)]}


def test_log_with_step_and_commit_closes_its_row(rows):
    rows.history.log({"a": 1}, step=3, commit=True)
    rows.history.log({"a": 2})
    assert rows.points["a"] == [(3, 1), (4, 2)]


def test_log_below_the_current_step_is_dropped_with_one_warning(rows, caplog):
    rows.history.log({"a": 1}, step=10)
    rows.history.log({"a": 2}, step=4)
    rows.history.log({"a": 3}, step=5)
    assert rows.points == {"a": [(10, 1)]}
    assert [record.getMessage().partition(":")[2][:45] for record in caplog.records] == [
        " got step 4, which is below the current step "
    ]


@pytest.mark.parametrize("step", [1.5, "3", None.__class__])
def test_log_with_a_step_that_is_no_whole_number_is_rejected(rows, step):
    with pytest.raises(ConfigError, match="expected a whole number"):
        rows.history.log({"a": 1}, step=step)


def test_step_metric_gives_its_value_and_is_inserted_where_a_row_lacks_it(rows):
    rows.history.define("epoch")
    rows.history.define("val/*", step_metric="epoch")
    rows.history.log({"epoch": 1, "val/accuracy": 0.5})
    rows.history.log({"val/accuracy": 0.6})
    assert rows.points == {"epoch": [(0, 1), (1, 1)], "val/accuracy": [(1, 0.5), (1, 0.6)]}


def test_step_metric_of_a_later_call_of_the_row_counts(rows):
    rows.history.define("val/*", step_metric="epoch")
    rows.history.log({"val/accuracy": 0.5}, commit=False)
    assert rows.points == {}
    rows.history.log({"epoch": 7})
    assert rows.points == {"epoch": [(0, 7)], "val/accuracy": [(7, 0.5)]}


def test_step_metric_that_nobody_logs_leaves_the_step_of_the_row(rows):
    rows.history.define("val/*", step_metric="epoch")
    rows.history.log({"loss": 1.0})
    rows.history.log({"val/accuracy": 0.5}, commit=False)
    rows.history.flush()
    assert rows.points["val/accuracy"] == [(1, 0.5)]


def test_step_metric_without_sync_counts_only_in_its_own_row(rows):
    rows.history.define("val/*", step_metric="epoch", step_sync=False)
    rows.history.log({"epoch": 9})
    rows.history.log({"val/accuracy": 0.5})
    assert rows.points == {"epoch": [(0, 9)], "val/accuracy": [(1, 0.5)]}


def test_summary_is_the_last_value_or_what_was_asked_for(rows):
    rows.history.define("loss", summary="min,max,mean,first,last")
    rows.history.define("hidden", summary="none")
    for value in (2.0, 0.5, math.nan, 1.0):
        rows.history.log({"loss": value, "plain": value, "hidden": 1})
    assert rows.history.summary_of("plain") == 1.0
    assert rows.history.summary_of("loss") == {
        "min": 0.5, "max": 2.0, "mean": 3.5 / 3, "first": 2.0, "last": 1.0,
    }  # fmt: skip
    assert list(rows.history.summarized()) == ["loss", "plain"]


def test_rules_merge_unless_overwritten(rows):
    rows.history.define("loss", step_metric="epoch", summary="min")
    assert rows.history.define("loss", goal="minimize") == rows.history.rules["loss"]
    assert (rows.history.rules["loss"].step_metric, rows.history.rules["loss"].better) == ("epoch", "min")
    rows.history.define("loss", summary="max", overwrite=True)
    assert (rows.history.rules["loss"].step_metric, rows.history.rules["loss"].better) == (None, "max")


def test_exact_rule_comes_before_a_pattern(rows):
    rows.history.define("val/*", step_metric="epoch")
    rows.history.define("val/loss", step_metric="batch")
    rows.history.log({"epoch": 5, "batch": 70, "val/loss": 1.0, "val/accuracy": 0.1})
    assert (rows.points["val/loss"], rows.points["val/accuracy"]) == ([(70, 1.0)], [(5, 0.1)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "a*b"}, "expected a name, perhaps with a \\* at its end"),
        ({"name": ""}, "got the name ''"),
        ({"name": "a", "summary": "median"}, "got summary='median'"),
        ({"name": "a", "goal": "up"}, "got goal='up', expected minimize or maximize"),
    ],
)
def test_define_with_an_invalid_argument_is_rejected(rows, arguments, message):
    with pytest.raises(ConfigError, match=message):
        rows.history.define(**arguments)


def test_threads_give_each_call_a_step_of_its_own(rows):
    def log():
        for _ in range(200):
            rows.history.log({"a": 1})

    threads = [threading.Thread(target=log) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(step for step, _ in rows.points["a"]) == list(range(800))
