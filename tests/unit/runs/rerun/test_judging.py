import functools
import json
import math

import pytest

from sacristan.runs import Tolerance
from sacristan.runs.rerun.judging import judge
from sacristan.runs.rerun.verdict import DIVERGED, IDENTICAL, WITHIN

NAN, INF = math.nan, math.inf


@pytest.fixture
def judge_runs(write_store):
    """Judge two runs, given as `write_store` takes them."""

    def run(old, new, tolerance=None, name="store"):
        store = write_store(old, new, name=name)
        return judge(store.get("1"), store.get("2"), tolerance)

    run.again = functools.partial(run, name="again")
    return run


def metrics(**series):
    return {"metrics": {name.replace("_", "/"): values for name, values in series.items()}}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ([0.5, 0.25], [0.5, 0.25], IDENTICAL),
        ([NAN, 1.0], [NAN, 1.0], IDENTICAL),
        ([INF, -INF], [INF, -INF], IDENTICAL),
        ([1.0], [math.nextafter(1.0, 2)], WITHIN),
        ([0.0], [-0.0], WITHIN),
        ([1000.0], [1001.0], WITHIN),
        ([1000.0], [1001.1], DIVERGED),
        ([0.0], [1e-300], DIVERGED),
        ([NAN], [1.0], DIVERGED),
        ([1.0], [NAN], DIVERGED),
        ([INF], [-INF], DIVERGED),
        ([INF], [1.0], DIVERGED),
        ([1.0], [INF], DIVERGED),
        ([(1, 0.5)], [(2, 0.5)], DIVERGED),
        ([(0, 0.5), (1, 0.5)], [(0, 0.5)], DIVERGED),
        ([(0, 0.5)], [(0, 0.5), (1, 0.5)], DIVERGED),
    ],
)
def test_points_of_a_metric_are_judged(judge_runs, old, new, expected):
    assert judge_runs(metrics(loss=old), metrics(loss=new)).verdict == expected


def test_first_deviation_is_the_earliest_step_of_all_metrics(judge_runs):
    old = metrics(train_loss=[(0, 3.0), (50, 2.0), (100, 1.0)], val_loss=[(50, 1.5)], a=[(100, 1.0)])
    new = metrics(train_loss=[(0, 3.0), (50, 2.5), (100, 9.0)], val_loss=[(50, 1.6)], a=[(100, 7.0)])
    found = judge_runs(old, new)
    assert (found.first.metric, found.first.step, found.first.old, found.first.new) == ("val/loss", 50, 1.5, 1.6)
    assert found.text == "DIVERGED: val/loss at step 50: recorded 1.5, now 1.6"
    assert {one.name: one.verdict for one in found.metrics} == dict.fromkeys(["a", "train/loss", "val/loss"], DIVERGED)


def test_few_metrics_that_differ_may_measure_time(judge_runs):
    old = metrics(loss=[1.0, 0.5], reward=[3.0, 4.0], steps_s=[310.0, 325.0])
    [note] = judge_runs(old, metrics(loss=[1.0, 0.5], reward=[3.0, 4.0], steps_s=[205.0, 201.0])).notes
    assert note.endswith("if steps/s depends on the clock, exclude it with --tolerance steps/s=inf")
    assert judge_runs.again(old, metrics(loss=[1.0, 0.6], reward=[3.0, 4.0], steps_s=[205.0, 201.0])).notes == ()


def test_deviations_are_stated_per_metric(judge_runs):
    found = judge_runs(metrics(loss=[1.0, 2.0, 4.0], acc=[1.0]), metrics(loss=[1.0, 2.001, 4.0005], acc=[1.0]))
    one = next(one for one in found.metrics if one.name == "loss")
    assert (one.verdict, one.num_deviating, one.num_points, one.rtol) == (WITHIN, 2, 3, 1e-3)
    assert one.largest_relative == pytest.approx(5e-4)
    assert one.largest_absolute == pytest.approx(1e-3)
    sizes = "0.0005 relative, 0.001 absolute"
    said = f"largest difference {sizes} (loss at step 1: recorded 2.0, now 2.001)"
    assert found.text == f"WITHIN TOLERANCE (0.001 relative): {said}"


def test_largest_differences_are_those_of_metrics_that_count_and_of_the_result(judge_runs):
    old = {**metrics(count=[1e9], loss=[2.0], time=[1.0]), "result": {"acc": [0.5, 1000.0], "name": "a"}}
    new = {**metrics(count=[1e9 + 9e5], loss=[2.0], time=[9e9]), "result": {"acc": [0.5, 1000.95], "name": "a"}}
    found = judge_runs(old, new, Tolerance(by_metric={"time": INF}))
    assert found.verdict == WITHIN
    assert found.text.endswith(
        "largest difference 0.00095 relative (result.acc[1]: recorded 1000.0, now 1000.95), 9e+05 absolute "
        "(count at step 0: recorded 1000000000.0, now 1000900000.0)"
    )
    assert judge_runs.again(old, new).largest_text.startswith("largest difference 9e+09 relative, 9e+09 absolute (time")


def test_identical_runs_have_no_largest_difference(judge_runs):
    found = judge_runs({**metrics(loss=[NAN, INF]), "result": NAN}, {**metrics(loss=[NAN, INF]), "result": NAN})
    assert (found.verdict, found.largest, found.largest_text) == (IDENTICAL, (), "")


def test_difference_of_the_steps_alone_says_so(judge_runs):
    old, new = metrics(speed=[(3, 0.5), (8, 0.7)], loss=[1.0]), metrics(speed=[(3, 0.5), (9, 0.7)], loss=[1.0])
    found = judge_runs(old, new)
    text = "DIVERGED IN THE STEPS ALONE: speed: recorded at step 8, now at step 9, with the same value 0.7"
    assert (found.verdict, found.text) == (DIVERGED, text)
    assert found.notes[0].startswith("speed: all values are the same, only steps differ; if they come from a clock, ")
    other = judge_runs.again(old, {**new, "metrics": {**new["metrics"], "loss": [2.0]}})
    assert other.text.startswith("DIVERGED: loss at step 0")


def test_tolerance_of_a_metric_is_its_own(judge_runs):
    old, new = metrics(loss=[1.0], time=[5.0, 0.0]), metrics(loss=[1.1], time=[9.0])
    tolerance = Tolerance(rtol=1e-6, by_metric={"loss": 0.2, "time": INF})
    assert judge_runs(old, new, tolerance).verdict == WITHIN


def test_tolerance_of_a_glob_is_that_of_all_metrics_it_matches(judge_runs):
    old = metrics(eval_loss=[1.0], eval_acc=[1.0], loss=[1.0])
    new = metrics(eval_loss=[1.4], eval_acc=[1.04], loss=[1.0])
    assert judge_runs(old, new, Tolerance(by_metric={"eval/*": INF})).verdict == WITHIN
    own = {"eval/*": INF, "eval/loss": 0.1}
    assert judge_runs.again(old, new, Tolerance(by_metric=own)).verdict == DIVERGED
    assert Tolerance(by_metric={"*": INF}).rtol_of("result") == 1e-3  # which is no metric


def test_absolute_tolerance_is_for_values_near_zero(judge_runs):
    assert judge_runs(metrics(loss=[0.0]), metrics(loss=[1e-9]), Tolerance(atol=1e-8)).verdict == WITHIN


def test_metrics_of_one_run_alone_diverge(judge_runs):
    found = judge_runs(metrics(a=[1.0, 2.0], b=[1.0]), metrics(b=[1.0], c=[3.0]))
    assert found.verdict == DIVERGED
    assert found.reasons == (
        "a: the new run did not log it; recorded 2 points",
        "c: only the new run logged it, 1 point",
    )


def test_missing_points_are_told_with_their_step(judge_runs):
    found = judge_runs(metrics(a=[(10, 1.0), (20, 2.0)]), metrics(a=[(10, 1.0)]))
    assert found.text == "DIVERGED: a: recorded 2 points, now 1; the first only in the recorded run is at step 20"


def test_metrics_of_the_machine_never_count(judge_runs):
    old, new = {"metrics": {"system/cpu": [1.0]}}, {"metrics": {"system/cpu": [2.0], "system/gpu": [1.0]}}
    assert judge_runs(old, new).verdict == IDENTICAL


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (0.5, 0.5, IDENTICAL),
        (None, None, IDENTICAL),
        (NAN, NAN, IDENTICAL),
        ({"a": [1, {"b": 2.0}]}, {"a": [1, {"b": 2.0}]}, IDENTICAL),
        (1.0, 1.0005, WITHIN),
        ({"a": [1, {"b": 2.0}]}, {"a": [1, {"b": 2.001}]}, WITHIN),
        (1.0, 1.1, DIVERGED),
        (1.0, None, DIVERGED),
        ("good", "bad", DIVERGED),
        (1, True, DIVERGED),
        ({"a": 1}, {"a": 1, "b": 1}, DIVERGED),
        ([1], [1, 2], DIVERGED),
    ],
)
def test_result_is_judged(judge_runs, old, new, expected):
    found = judge_runs({"result": old}, {"result": new})
    assert found.verdict == expected
    assert bool(found.reasons) == (expected == DIVERGED)


def test_status_counts(judge_runs):
    found = judge_runs({"status": "COMPLETED"}, {"status": "INTERRUPTED"})
    assert found.text == "DIVERGED: the status differs: recorded COMPLETED, now INTERRUPTED"


def test_failures_alike_are_reproduced(write_store):
    store = write_store(*[{"status": "FAILED"}] * 3)
    for run, cause in zip("123", ("ValueError: a", "ValueError: a", "ValueError: b"), strict=True):
        path = store.backend.folder / run / "run.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "fail_trace": ["File x, line 1\n", f"{cause}\n"]}))
    runs = [store.get(key) for key in "123"]
    assert judge(runs[0], runs[1]).verdict == IDENTICAL
    assert judge(runs[0], runs[2]).reasons == (
        "both failed, and not alike: recorded 'ValueError: a', now 'ValueError: b'",
    )


@pytest.mark.parametrize(("value", "expected"), [(2.0, IDENTICAL), (5.0, DIVERGED)])
def test_of_a_run_that_was_cut_off_its_own_points_count(judge_runs, value, expected):
    old = {"status": "INTERRUPTED", "metrics": {"a": [1.0, 2.0]}}
    new = {"status": "COMPLETED", "metrics": {"a": [1.0, value, 3.0], "b": [1.0]}, "result": 1.0}
    found = judge_runs(old, new)
    assert found.verdict == expected
    assert "INTERRUPTED: only the points that it logged are compared" in found.notes[0]


def artifacts(store, run, **files):
    path = store.backend.folder / run / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "artifacts": list(files)}))
    for name, text in files.items():
        (store.backend.folder / run / name).write_text(text)


def test_artifacts_are_compared_by_content(write_store):
    store = write_store({}, {}, {})
    artifacts(store, "1", a="one", b="two", c="three")
    artifacts(store, "2", a="one", b="two", c="three")
    artifacts(store, "3", a="one", b="2", d="four")
    assert judge(store.get("1"), store.get("2")).verdict == IDENTICAL
    found = judge(store.get("1"), store.get("3"))
    assert found.verdict == DIVERGED
    assert [reason.partition(":")[0].partition(" differs")[0] for reason in found.reasons] == [
        "artifact 'b'",
        "artifact 'c'",
        "artifact 'd'",
    ]


def test_versions_of_artifacts_are_compared_by_digest(write_store):
    store = write_store({}, {})
    for run, digest in (("1", "a" * 64), ("2", "b" * 64)):
        path = store.backend.folder / run / "run.json"
        entry = {"name": "model", "version": int(run), "digest": digest}
        path.write_text(json.dumps({**json.loads(path.read_text()), "artifacts_logged": [entry]}))
    assert "versions of the artifact 'model'" in judge(store.get("1"), store.get("2")).reasons[0]


def test_values_that_are_no_numbers_are_compared_without_their_times(write_store):
    store = write_store({}, {}, {})
    for run, (time, value) in {"1": (1, "x"), "2": (2, "x"), "3": (1, "y")}.items():
        row = {"name": "a", "step": 0, "time": time, "value": value}
        (store.backend.folder / run / "values.jsonl").write_text(json.dumps(row) + "\n")
    assert judge(store.get("1"), store.get("2")).verdict == IDENTICAL
    assert judge(store.get("1"), store.get("3")).reasons == ("logged values that are no numbers differ",)


def test_media_are_told_and_do_not_count(write_store):
    store = write_store({}, {})
    for run in "12":
        row = {"name": "image", "kind": "image", "step": 3, "sha256": run * 64, "file": f"media/{run * 64}.png"}
        (store.backend.folder / run / "media.jsonl").write_text(json.dumps(row) + "\n")
    found = judge(store.get("1"), store.get("2"))
    assert found.verdict == IDENTICAL
    assert "1 of 1 images, tables and so on differ, which does not affect the verdict: image at step 3" in found.notes


@pytest.mark.parametrize("status", ["COMPLETED", "INTERRUPTED"])
def test_nothing_to_compare_is_said(judge_runs, status):
    assert any("there was nothing to compare" in note for note in judge_runs({"status": status}, {}).notes)


def test_verdict_is_strict_json(judge_runs):
    from sacristan.runs.query.texts import strict

    found = judge_runs(metrics(loss=[0.0]), metrics(loss=[NAN]))
    document = json.loads(json.dumps(strict(found.as_json()), allow_nan=False))
    assert document["first"] == {"metric": "loss", "step": 0, "old": 0.0, "new": "NaN", "new_step": 0}
    assert document["metrics"][0]["largest_absolute"] == "Infinity"
