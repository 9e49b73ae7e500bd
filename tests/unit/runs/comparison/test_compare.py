from __future__ import annotations

import json
import math
import random

import pytest

from sacristan.runs import ComparisonError, FilterError, compare, diff, open_store
from sacristan.runs.comparison import group_runs
from sacristan.runs.comparison.comparing import direction_of
from sacristan.runs.comparison.reports import (
    as_latex,
    escape_latex,
    group_head,
    group_rows,
    notes,
    pair_rows,
    round_to,
    verdict,
)
from sacristan.runs.documents.compared import comparison_of
from sacristan.runs.stores.settings import differing, identity, settings, show

ADAM = [0.90, 0.92, 0.91, 0.95, 0.93]
SGD = [0.85, 0.88, 0.86, 0.89, 0.90]


def rows(name, values, seeds=None, **more):
    seeds = range(len(values)) if seeds is None else seeds
    return [
        {"opt": {"name": name}, "seed": seed, "metrics": {"val/accuracy": [value]}, **more}
        for seed, value in zip(seeds, values, strict=True)
    ]


def of(store, by="opt.name", over="seed", metric="val/accuracy.max", **options):
    return compare(store.find(), by, over, metric, **options)


def test_shared_seeds_are_compared_in_pairs(write_store):
    import scipy.stats

    found = of(write_store(*rows("sgd", SGD), *rows("adam", ADAM)))
    assert [group.label for group in found.groups] == ["opt.name=adam", "opt.name=sgd"]  # the best first
    adam, sgd = found.groups
    assert (adam.sample.n, adam.sample.mean, sgd.sample.mean) == (5, pytest.approx(0.922), pytest.approx(0.876))
    assert (adam.best, adam.best_run) == (0.95, "9")
    [pair] = found.pairs
    expected = scipy.stats.ttest_rel(ADAM, SGD)
    assert (pair.test.method, pair.test.n) == ("paired t", 5)
    assert (pair.test.p, pair.p_holm) == (pytest.approx(expected.pvalue), pytest.approx(expected.pvalue))
    assert (pair.verdict, pair.is_few, pair.unpaired) == ("first", False, ())
    assert found.cautions == ()


def test_other_seeds_are_compared_by_welch(write_store):
    import scipy.stats

    found = of(write_store(*rows("sgd", SGD), *rows("adam", ADAM, range(10, 15))))
    [pair] = found.pairs
    assert pair.test.method == "welch t"
    assert pair.test.p == pytest.approx(scipy.stats.ttest_ind(ADAM, SGD, equal_var=False).pvalue)


def test_seeds_of_one_group_alone_are_named(write_store):
    found = of(write_store(*rows("sgd", SGD), *rows("adam", ADAM, [1, 2, 3, 4, 9])))
    [pair] = found.pairs
    assert (pair.test.method, pair.test.n) == ("paired t", 4)
    assert pair.unpaired == ("seed=0 of opt.name=sgd", "seed=9 of opt.name=adam")
    assert pair.is_few
    few_shared = of(write_store(*rows("sgd", SGD), *rows("adam", ADAM, [3, 4, 7, 8, 9]), name="few"))
    assert few_shared.pairs[0].test.method == "welch t"
    forced = of(write_store(*rows("sgd", SGD), *rows("adam", ADAM, [3, 4, 7, 8, 9]), name="forced"), test="paired")
    assert (forced.pairs[0].test.method, forced.pairs[0].test.n) == ("paired t", 2)


def test_without_over_every_run_counts(write_store):
    found = of(write_store(*rows("sgd", SGD), *rows("adam", ADAM, [7] * 5)), over=None)
    assert [group.sample.n for group in found.groups] == [5, 5]
    assert found.pairs[0].test.method == "welch t"
    assert "opt.name=sgd: its runs also differ in seed" in found.cautions


def test_runs_of_one_seed_count_once(write_store):
    found = of(write_store(*rows("adam", [0.8, 0.9, 0.5], [0, 0, 1])))
    [group] = found.groups
    assert (group.sample.n, group.sample.mean) == (2, pytest.approx((0.85 + 0.5) / 2))
    assert group.runs == ("1", "2", "3")
    assert (group.best, group.best_run) == (0.9, "2")
    assert "opt.name=adam: more than one run of seed=0; their mean counts once" in found.cautions


def test_every_run_counts_or_is_named(write_store):
    store = write_store(
        *rows("adam", [0.9, 0.8, 0.7]),
        {"opt": {"name": "adam"}, "seed": 3},
        {"opt": {"name": "adam"}, "seed": 4, "metrics": {"val/accuracy": [math.nan]}},
        {"opt": {"name": "adam"}, "seed": 5, "metrics": {"val/accuracy": [math.inf]}},
        {"opt": {"name": "adam"}, "seed": 6, "metrics": {"val/accuracy": [0.9]}, "status": "FAILED"},
        {"opt": {"name": "adam"}, "metrics": {"val/accuracy": [0.9]}},
    )
    found = of(store)
    reasons = {entry.run.id: entry.reason for entry in found.excluded}
    assert reasons == {
        "4": "has no val/accuracy.max",
        "5": "has no val/accuracy.max",
        "6": "has val/accuracy.max inf",
        "7": "is FAILED",
        "8": "has no seed",
    }
    assert found.groups[0].num_excluded == 5
    assert found.cautions[0].startswith("5 of 8 runs are excluded; if they failed because of what is compared")
    last = of(store, metric="val/accuracy.last", any_status=True)
    assert {entry.run.id: entry.reason for entry in last.excluded}["5"] == "has val/accuracy.last nan"
    assert "7" in last.groups[0].runs


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (True, "has result True, which is no number"),
        ("good", "has result 'good', which is no number"),
        (10**400, "has a result that is too large"),
    ],
)
def test_result_that_is_no_number_is_excluded(write_store, value, reason):
    found = of(write_store({"a": 1, "result": 0.5}, {"a": 1, "result": value}), "a", None, "result", mode="max")
    assert [entry.reason for entry in found.excluded] == [reason]


def test_too_few_say_nothing(write_store):
    found = of(write_store(*rows("adam", [0.9]), *rows("sgd", [0.5])))
    assert [group.sample.low for group in found.groups] == [None, None]
    [pair] = found.pairs
    assert (pair.verdict, pair.p_holm, pair.test.reason) == (
        "too few",
        None,
        "1 and 1 values, and at least 2 in each are needed",
    )
    assert "opt.name=adam: n = 1 says nothing about chance; at least 2 repetitions are needed" in found.cautions
    four = of(write_store(*rows("adam", ADAM[:4]), *rows("sgd", SGD[:4]), name="four"))
    assert any(caution.startswith("opt.name=adam: n = 4 is few") for caution in four.cautions)
    assert verdict(four.pairs[0]).endswith("(few runs)")
    assert verdict(pair) == "not tested"
    assert notes(found) == ["adam - sgd: 1 and 1 values, and at least 2 in each are needed"]


def test_equal_values_are_no_surprise(write_store):
    found = of(write_store(*rows("adam", [0.9] * 5), *rows("sgd", [0.8] * 5)))
    assert [group.sample.std for group in found.groups] == [0.0, 0.0]
    assert (found.pairs[0].verdict, found.pairs[0].test.p) == ("too few", None)
    assert any("all 5 values are equal" in caution for caution in found.cautions)
    json.dumps(comparison_of(found), allow_nan=False)


def test_group_without_a_value_comes_last(write_store):
    found = of(write_store({"opt": {"name": "adam"}, "seed": 0}, *rows("sgd", SGD)))
    assert [(group.label, group.sample.n) for group in found.groups] == [("opt.name=sgd", 5), ("opt.name=adam", 0)]
    assert found.pairs[0].verdict == "too few"
    assert len(as_latex(found).splitlines()) > 5


def test_p_is_corrected_for_all_pairs(write_store):
    found = of(write_store(*rows("a", ADAM), *rows("b", SGD), *rows("c", [0.1, 0.3, 0.2, 0.5, 0.1])))
    assert len(found.pairs) == 3
    raw = sorted(pair.test.p for pair in found.pairs)
    corrected = sorted(pair.p_holm for pair in found.pairs)
    assert corrected == pytest.approx([3 * raw[0], max(3 * raw[0], 2 * raw[1]), max(3 * raw[0], 2 * raw[1], raw[2])])
    assert any("corrected for 3 tests (Holm)" in caution for caution in found.cautions)


def test_order_of_runs_changes_nothing(write_store):
    store = write_store(*rows("sgd", SGD), *rows("adam", ADAM), *rows("adam", [0.3, 0.4]), *rows("x", [0.1, math.nan]))
    runs = store.find()
    first = comparison_of(compare(runs, "opt.name", "seed", "val/accuracy.max"))
    for seed in range(5):
        random.Random(seed).shuffle(runs)
        assert comparison_of(compare(runs, "opt.name", "seed", "val/accuracy.max")) == first


def test_groups_by_several_fields_and_any_kind_of_value(write_store):
    values = [1, 1.0, True, None, "1", [1, 2], {"a": 1}, "x" * 100 + "a", "x" * 100 + "b"]
    store = write_store(*({"a": value, "b": 2, "result": 0.5} for value in values))
    groups, _ = group_runs(store.find(), ["a", "b"])
    labels = [group.label for group in groups]
    assert len(labels) == len(set(labels)) == len({group.name for group in groups}) == 8
    assert {"a=1, b=2", "a=True, b=2", "a=None, b=2", "a='1', b=2", "a=[1, 2], b=2"} <= set(labels)


def test_duration_is_compared_too(write_store, tmp_path):
    store = write_store({"a": 1}, {"a": 1})
    for number, seconds in ((1, 10), (2, 30)):
        path = tmp_path / "store" / str(number) / "run.json"
        run = json.loads(path.read_text())
        path.write_text(json.dumps({**run, "stop_time": f"2026-01-01T00:00:{number + seconds:02}"}))
    assert of(store, "a", None, "duration").groups[0].sample.mean == 20


def test_mixed_groups_are_named(write_store):
    store = write_store(*rows("adam", SGD, lr=0.1), *rows("adam", ADAM, range(5, 10), lr=0.2))
    assert "opt.name=adam: its runs also differ in lr" in of(store).cautions


def test_runs_of_other_commands_are_excluded(write_store):
    made = {"opt": {"name": "adam"}, "seed": 0, "result": 270, "command": "predict"}
    store = write_store(*rows("adam", ADAM), *rows("sgd", SGD), made, {**made, "seed": 1})
    found = of(store)
    assert [(group.name, group.sample.n) for group in found.groups] == [("adam", 5), ("sgd", 5)]
    assert [(entry.run.id, entry.group, entry.reason) for entry in found.excluded] == [
        (id, "opt.name=adam", "is of the command predict, not main; for those: --where command=predict")
        for id in ("11", "12")
    ]
    assert found.cautions == ("left out: 2 runs of predict",)
    assert of(store, metric="result", where="command=predict", mode="max").groups[0].sample.mean == 270
    assert {group.name for group in of(store, by="command", metric="seed", mode="max").groups} == {"main", "predict"}


def test_what_makes_another_task_is_named_first(write_store):
    others = [
        {"a": n, "b": n, "c": n, "d": n, "z": n, "loss": {"name": f"l{n}"}, "data": {"name": f"d{n}"}} for n in (1, 2)
    ]
    store = write_store(*({"opt": "x", "result": n, **other} for n, other in enumerate(others)))
    [caution] = [one for one in of(store, "opt", None, "result", mode="max").cautions if "differ" in one]
    assert caution == "opt=x: its runs also differ in data.name, loss.name, a, b, c and 2 other settings"


def test_settings_of_the_experiment_itself_are_named_before_those_of_its_other_parts(write_store):
    others = [
        {"epochs": n, "width": n, "checkpoint": {"best": n}, "probe": {"every": n}, "amp": {"scale": n}} for n in (1, 2)
    ]
    store = write_store(*({"opt": "x", "result": n, **other} for n, other in enumerate(others)))
    [caution] = [one for one in of(store, "opt", None, "result", mode="max").cautions if "differ" in one]
    assert caution == "opt=x: its runs also differ in epochs, width, amp.scale, checkpoint.best, probe.every"


def test_groups_that_differ_in_a_setting_of_the_experiment_itself_are_named(write_store):
    store = write_store(*rows("adam", ADAM, epochs=5), *rows("sgd", SGD, epochs=30, amp={"dtype": "off"}))
    assert "the groups also differ in epochs" in of(store).cautions


def test_other_contents_of_the_data_are_named(write_store):
    runs = [{"opt": "x", "result": n, "info": {"data": {"fingerprint": f"{n}" * 8}}} for n in (1, 2)]
    cautions = of(write_store(*runs), "opt", None, "result", mode="max").cautions
    assert "opt=x: its runs also differ in data (its content)" in cautions


def test_groups_of_other_data_are_named(write_store):
    sgd = rows("sgd", SGD, data={"name": "wine"})
    found = of(write_store(*rows("adam", ADAM, data={"name": "iris"}), *sgd))
    assert found.cautions == ("the groups also differ in data.name",)


def test_where_chooses_runs(write_store):
    store = write_store(*rows("adam", ADAM), *rows("sgd", SGD))
    found = of(store, where="seed<3")
    assert [group.sample.n for group in found.groups] == [3, 3]
    for misspelt, message in (("sede!=3", "no run has a field 'sede'"), ("status!=failed", "status: got 'failed'")):
        with pytest.raises(FilterError, match=message):
            of(store, where=misspelt)


def test_best_is_the_lowest_of_a_loss(write_store):
    store = write_store(*({"a": a, "metrics": {"val/loss": [a]}} for a in (0.5, 0.1, 0.3)))
    assert [group.best for group in of(store, "a", None, "val/loss.min").groups] == [0.1, 0.3, 0.5]
    assert [group.best for group in of(store, "a", None, "val/loss.min", mode="max").groups] == [0.5, 0.3, 0.1]


@pytest.mark.parametrize(("mode", "winner"), [("min", "sgd"), ("max", "adam")])
def test_winner_follows_the_mode(write_store, mode, winner):
    [pair] = of(write_store(*rows("sgd", SGD), *rows("adam", ADAM)), mode=mode).pairs
    assert (pair.first.name, pair.verdict) == (winner, "first")
    assert verdict(pair) == f"{winner} is better"
    assert (pair.test.value < 0) == (mode == "min")


def test_winner_may_be_the_second_where_pairs_say_so(write_store):
    # By its mean over all its seeds `a` is first; by the seeds that both have, `b` is better in every pair.
    a = rows("a", [0.10, 0.21, 0.30, 0.41, 0.99, 0.99, 0.99, 0.99])
    b = rows("b", [0.20, 0.30, 0.40, 0.50])
    [pair] = of(write_store(*a, *b)).pairs
    assert (pair.first.name, pair.test.method, pair.verdict) == ("a", "paired t", "second")
    assert verdict(pair) == "b is better (few runs)"


@pytest.mark.parametrize(
    ("metric", "entries", "expected"),
    [
        ("val/accuracy.max", {}, "max"),
        ("info.test.accuracy", {}, "max"),
        ("val/loss.min", {}, "min"),
        ("duration", {}, "min"),
        ("result", {"info": {"better": {"result": "max"}}}, "max"),
        ("result", {"info": {"better": {"result": "min"}}}, "min"),
        ("info.test.f1", {"info": {"better": {"f1": "max"}}}, "max"),
        ("val/f1/cat.last", {"info": {"better": {"f1": "max"}}}, "max"),
        ("val/wer.last", {"training": {"monitor": "val/wer", "mode": "min"}}, "min"),
        ("val/top3_accuracy.last", {"training": {"monitor": "val/top3_accuracy", "mode": "auto"}}, "max"),
    ],
)
def test_direction_is_what_the_runs_recorded(write_store, metric, entries, expected):
    assert direction_of(write_store({"a": 1}, {"a": 2, **entries}).find(), metric) == expected


def test_direction_that_nobody_recorded_is_not_guessed(write_store):
    store = write_store(*({"a": a, "result": a, "metrics": {"val/f1": [a]}} for a in (0.5, 0.6)))
    for metric in ("result", "val/f1.last", "lr_of_accuracy"):
        with pytest.raises(
            ComparisonError, match="no run records whether more or less of it is better; say which: --max"
        ):
            direction_of(store.find(), metric)
    with pytest.raises(ComparisonError, match="result: no run records"):
        of(store, "a", None, "result")
    best = of(store, "a", None, "result", mode="max")
    assert ([group.name for group in best.groups], best.better) == (["0.6", "0.5"], "greater is better")
    noted = ({"a": a, "result": a, "info": {"better": {"result": mode}}} for a, mode in ((1, "max"), (2, "min")))
    with pytest.raises(ComparisonError, match="run 1 records that more is better, run 2 that less is; say which"):
        of(write_store(*noted, name="noted"), "a", None, "result")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"by": "opt.nmae"}, r"none of the runs has opt.nmae; did you mean opt.name\?"),
        ({"over": "sede"}, r"none of the runs has sede; did you mean seed\?"),
        ({"metric": "val/accuracy"}, "expected a statistic of it too, such as val/accuracy.last"),
        (
            {"metric": "val/nothing.max"},
            "none of the 5 runs can be compared by val/nothing.max; each has no val/nothing.max",
        ),
        ({"mode": "best"}, "mode: got 'best', expected one of auto, max, min"),
        ({"test": "z"}, "test: got 'z', expected one of auto, paired, welch"),
        ({"test": "paired", "over": None}, "test: got 'paired' without over"),
        ({"confidence": 95}, "confidence: got 95, expected a number between 0 and 1"),
        ({"where": "seed>99"}, "there are no runs to compare"),
    ],
)
def test_what_makes_no_sense_is_refused(write_store, arguments, message):
    with pytest.raises(ComparisonError, match=message):
        of(write_store(*rows("adam", ADAM)), **arguments)


def test_differing_names_each_setting_once(write_store):
    runs = write_store(
        {"lr": 1, "optimizer": {"lr": 1, "name": "a"}, "seed": 1, "model": {"seed": 5}},
        {"lr": 2, "optimizer": {"lr": 2, "name": "a"}, "seed": 2, "model": {"seed": 6}},
    ).find()
    assert differing(runs) == ["lr", "model.seed", "seed"]
    assert differing(runs, ["seed"]) == ["lr"]
    assert differing(runs, ["lr", "config.seed"]) == []


def test_runs_are_told_apart_by_the_first_entries_of_a_large_config(write_store):
    configs = [
        {"lr": 0.1 * n, "net": {f"x{i}": i * n for i in range(3_000)}, "few": {"a": {"b": n}}, "list": [n] * 20_000}
        for n in (1, 2)
    ]
    runs = write_store(*configs, {"lr": 0.3, "few": {"a": {"b": 3}}, "list": [3.0] * 20_000}).find()
    assert settings(runs)[:2] == ["list", "lr"]
    assert len(settings(runs)) == 1_999  # `few.a.b` is behind the first 2,000
    assert len(differing(runs)) == 3_003


def test_settings_are_what_differs_among_the_runs_that_have_it(write_store):
    runs = write_store(
        {"lr": 0.1, "seed": 1, "model": {"seed": 3, "name": "mlp"}, "epochs": 2},
        {"lr": 0.2, "seed": 2, "model": {"seed": 4, "name": "cnn"}, "epochs": 2},
        {"rounds": 7, "seed": 2},
    ).find(sort="id")
    assert settings(runs) == ["lr", "model.name", "seed"]
    assert settings(runs[:1]) == settings(runs[1:]) == settings([]) == []


def test_identity_follows_the_filters():
    assert identity(1) == identity(1.0) != identity(True) != identity("1")
    assert identity(math.nan) == identity(math.nan)
    assert identity({"a": 1, "b": [1]}) == identity({"b": [1.0], "a": 1})
    assert [show(value) for value in (0.001, 1.0, 1e30, "a", "3", "", "None", None)] == [
        "0.001", "1", "1e+30", "a", "'3'", "''", "'None'", "None",
    ]  # fmt: skip


# As text


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0.92234, 0.0123, "0.922"),
        (0.92234, 0.123, "0.92"),
        (1234.5678, 12.3, "1235"),
        (1234.5678, 250.0, "1235"),
        (12.345, None, "12.35"),
        (12.345, 0.0, "12.35"),
        (None, 1.0, "-"),
        (1.23456e-7, 1.2e-9, "1.235e-07"),
        (-1.23456e9, 1.2e7, "-1.235e+09"),
        (0.0, 0.01, "0.000"),
        (math.inf, 1.0, "inf"),
    ],
)
def test_digits_follow_the_error(value, error, text):
    assert round_to(value, error) == text


def test_rows_say_it_all(write_store):
    found = of(write_store(*rows("sgd", SGD), *rows("adam", ADAM, [0, 1, 2, 3, 9])))
    assert group_head(found) == ("opt.name", "n", "mean", "std", "95% interval", "best", "run")
    assert group_rows(found)[0] == ("adam", "5", "0.922", "0.019", "[0.898, 0.946]", "0.95", "9")
    assert notes(found) == [
        "adam - sgd: without a partner, and excluded: seed=4 of opt.name=sgd, seed=9 of opt.name=adam"
    ]
    # Of all five the differences are 5, 4, 5, 6, 3 hundredths: mean 0.046, deviation 0.0114, t = 9.02, factor 0.798.
    whole = of(write_store(*rows("sgd", SGD), *rows("adam", ADAM), name="whole"))
    assert pair_rows(whole)[0] == (
        "adam - sgd",
        "adam is better",
        "0.046 [0.032, 0.060]",
        "0.0008",
        "g_z = 3.22",
        "paired t, 5 pairs",
        "0.0008",
    )


def test_latex_sets_names_as_they_are(write_store):
    found = of(write_store(*rows("a_b & 50% $x$ \\bar{y} ~^#\n<", ADAM), *rows("sgd", SGD)))
    text = as_latex(found)
    [row] = [line for line in text.splitlines() if r"50\%" in line and not line.startswith("%")]
    assert r"a\_b \& 50\% \$x\$ \textbackslash{}" in row
    assert row.count(" & ") == 5
    assert row.endswith(r"\\")
    assert escape_latex("a_b{c}\x1b") == r"a\_b\{c\}?"
    assert [line[:1] for line in text.splitlines() if "caution" in line or "paired" in line] == ["%"]


def test_diff_does_not_report_a_mean_that_an_earlier_version_rounded_otherwise(write_store):
    store = write_store({"metrics": {"loss": [0.1, 0.2, 0.4]}}, {"metrics": {"loss": [0.1, 0.2, 0.4]}})
    path = store.get(2).folder / "summary.json"
    summary = json.loads(path.read_text())
    summary["loss"]["mean"] = math.nextafter(summary["loss"]["mean"], 1)
    path.write_text(json.dumps(summary))
    assert not diff(store.get(1), store.get(2))


def test_diff_reports_a_mean_that_differs_in_a_point(write_store):
    values = [0.1, 0.2, 0.3, 0.4]
    store = write_store({"metrics": {"loss": values}}, {"metrics": {"loss": [0.1, 0.3, 0.3, 0.4]}})
    assert list(diff(store.get(1), store.get(2)).metrics.changed) == ["loss.mean"]


def test_reproduction_outside_of_git_has_the_git_state_of_the_code_that_was_restored(write_store, tmp_path):
    write_store({"lr": 1}, {"lr": 1}, {"lr": 1})
    for number in (1, 2, 3):
        path = tmp_path / "store" / str(number) / "run.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "uid": f"{number:032x}"}))
    git = {"git": {"commit": "a" * 40, "dirty": False}}
    (tmp_path / "store" / "1" / "provenance.json").write_text(json.dumps(git))
    with open_store(tmp_path / "store") as store:
        store.note_reproduction(store.get(2), {"of": store.get(1).uid, "by": store.get(2).uid, "verdict": "IDENTICAL"})
        first, second, third = map(store.get, (1, 2, 3))
        assert not diff(first, second)
        assert not diff(second, first)
        assert set(diff(first, third).git.removed) == {"commit", "dirty"}
