"""Judge whether a run was reproduced: every metric point by point, the result, and the artifacts by content.

    verdict = judge(old, new, Tolerance(rtol=1e-3))
    print(verdict.text)

Times, captured output and metrics of the machine (`system/...`) never count. Media (images, tables, ...) are compared
by content and reported, and do not count either.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from sacristan.observers.record.json_text import parse_json
from sacristan.observers.record.points import Series
from sacristan.runs.query import dotted, list_of, mappings_in
from sacristan.runs.query.texts import count_text, is_number, list_text
from sacristan.runs.rerun import digest_of
from sacristan.runs.rerun.verdict import (
    CUT_OFF,
    DIVERGED,
    IDENTICAL,
    RANKS,
    RESULT,
    WITHIN,
    Deviation,
    MetricVerdict,
    Tolerance,
    Verdict,
)
from sacristan.runs.stores import Content, Run


def judge(old: Run, new: Run, tolerance: Tolerance | None = None) -> Verdict:
    """Compare a reproduction with the original.

    The verdict is the worst of all metrics and the result, and DIVERGED if status, artifacts or odd values differ. If
    the original was cut off, only the points that it logged are compared.
    """
    tolerance = tolerance or Tolerance()
    is_cut_off = old.status in CUT_OFF
    pairs = _series_pairs(old, new, is_cut_off=is_cut_off)
    judged = [_judge_metric(name, before, after, tolerance) for name, (before, after) in pairs.items()]
    counting = [entry.name for entry in judged if not math.isinf(entry.rtol)]
    reasons = [sentence for name in counting for sentence in _point_reasons(name, *pairs[name])]
    verdicts = [entry.verdict for entry in judged]
    notes = [_steps_note(entry.name) for entry in judged if entry.is_of_steps]
    deviations = [deviation for entry in judged if entry.name in counting for deviation in entry.extremes]
    if is_cut_off:
        notes.append(f"run {old.id} ended {old.status}: only the points that it logged are compared")
    else:
        result, of_result = _judge_result(old.result, new.result, tolerance)
        verdicts.append(result)
        deviations = [*of_result, *deviations]
        reasons += _reasons_at_the_end(old, new, result)
    if not judged and (is_cut_off or not (old.artifacts or old["artifacts_logged"] or old.result is not None)):
        notes.append(f"run {old.id} recorded no metric, no result and no artifact: there was nothing to compare")
    notes += _media_notes(old, new, is_cut_off=is_cut_off)
    if not reasons:
        notes += _clock_notes(judged)
    return Verdict(
        verdict=DIVERGED if reasons else _worst(verdicts),
        metrics=tuple(judged),
        first=_first(judged, pairs),
        reasons=tuple(reasons),
        notes=tuple(notes),
        tolerance=tolerance,
        largest=_largest(deviations),
    )


# ---------------------------------------------------------------------- metrics


def _series_pairs(old: Run, new: Run, *, is_cut_off: bool) -> dict[str, tuple[Series, Series]]:
    """Return the points of each metric in both runs; if the old one was cut off, of its metrics, as far as it came."""
    names = sorted(name for name in {*old.metrics, *new.metrics} if not name.startswith("system/"))
    pairs = {name: (_series(old, name), _series(new, name)) for name in names}
    if not is_cut_off:
        return pairs
    return {name: (before, _beginning(after, len(before))) for name, (before, after) in pairs.items() if len(before)}


def _series(run: Run, name: str) -> Series:
    if name in run.metrics:
        return run.metric(name)
    return Series(np.empty(0, np.int64), np.empty(0), np.empty(0))


def _beginning(series: Series, count: int) -> Series:
    return Series(series.steps[:count], series.values[:count], series.times[:count])


def _judge_metric(name: str, old: Series, new: Series, tolerance: Tolerance) -> MetricVerdict:
    count = min(len(old), len(new))
    a, b = old.values[:count], new.values[:count]
    same_steps = old.steps[:count] == new.steps[:count]
    same = ((a.view(np.int64) == b.view(np.int64)) | (np.isnan(a) & np.isnan(b))) & same_steps
    rtol = tolerance.rtol_of(name)
    with np.errstate(all="ignore"):
        # Equal infinities have no distance, an infinity and a number an infinite one.
        absolute = np.where((a == b) | same, 0.0, np.nan_to_num(np.abs(b - a), nan=np.inf))
        relative = np.where(absolute == 0, 0.0, absolute / np.abs(a))
        relative = np.nan_to_num(relative, nan=np.inf, posinf=np.inf)
        allowed = tolerance.atol + np.nan_to_num(rtol * np.abs(a), nan=0.0, posinf=0.0)
    good = same | (same_steps & (absolute <= allowed)) | np.isposinf(rtol)
    verdict = IDENTICAL if same.all() else WITHIN if good.all() else DIVERGED

    def deviation(i: np.intp) -> Deviation:
        return Deviation(name, *(value.item() for value in (old.steps[i], a[i], b[i], new.steps[i])))

    first = None if good.all() else deviation(np.argmin(good))
    extremes = tuple(deviation(np.argmax(size)) for size in (relative, absolute)) if absolute.any() else ()
    is_of_steps = bool(len(old) == len(new) and not absolute.any() and not same_steps.all() and np.isfinite(rtol))
    if len(old) != len(new) and not np.isposinf(rtol):
        verdict = DIVERGED
    largest = (float(relative.max(initial=0.0)), float(absolute.max(initial=0.0)))
    num_deviating = int((~same).sum())
    return MetricVerdict(name, verdict, len(old), len(new), num_deviating, rtol, *largest, first, extremes, is_of_steps)


def _steps_note(name: str) -> str:
    return (
        f"{name}: all values are the same, only steps differ; if they come from a clock, exclude the metric with "
        f"--tolerance {name}=inf"
    )


def _clock_notes(judged: list[MetricVerdict]) -> list[str]:
    """Return how to exclude the few metrics that differ, if all others are the same: they may measure time."""
    differing = [entry.name for entry in judged if entry.verdict == DIVERGED and not entry.is_of_steps]
    num_same = sum(entry.verdict == IDENTICAL for entry in judged)
    if not differing or num_same <= len(differing) or num_same + len(differing) < len(judged):
        return []
    options = " ".join(f"--tolerance {shlex.quote(f'{name}=inf')}" for name in differing)
    return [
        f"all other metrics are identical; if {list_text(differing)} depends on the clock, exclude it with {options}"
    ]


def _largest(deviations: list[Deviation]) -> tuple[Deviation, ...]:
    """Return the largest deviations: relative, absolute."""
    if not deviations:
        return ()
    # The other size breaks a tie.
    relative = max(deviations, key=lambda entry: (entry.relative, entry.absolute))
    return relative, max(deviations, key=lambda entry: (entry.absolute, entry.relative, entry is relative))


def _point_reasons(name: str, old: Series, new: Series) -> Iterator[str]:
    before, after = (count_text(len(series), "point") for series in (old, new))
    if len(old) == len(new):
        return
    if not len(new):
        yield f"{name}: the new run did not log it; recorded {before}"
    elif not len(old):
        yield f"{name}: only the new run logged it, {after}"
    else:
        longer, run = (old, "recorded") if len(old) > len(new) else (new, "new")
        step = longer.steps[min(len(old), len(new))].item()
        yield f"{name}: recorded {before}, now {len(new)}; the first only in the {run} run is at step {step}"


def _first(judged: list[MetricVerdict], pairs: Mapping[str, tuple[Series, Series]]) -> Deviation | None:
    """Return the first deviation by step; of those at one step, the one that was logged first."""
    entries = []
    for entry in judged:
        if entry.first is not None:
            old = pairs[entry.name][0]
            times = old.times[old.steps == entry.first.step]
            time = times[0] if len(times) and not np.isnan(times[0]) else math.inf
            entries.append((entry.first.step, time, entry.name, entry.first))
    return min(entries, key=lambda entry: entry[:3])[3] if entries else None


# ---------------------------------------------------------------------- result


def _judge_result(old: Any, new: Any, tolerance: Tolerance) -> tuple[str, list[Deviation]]:
    """Compare two results, numbers within the tolerance; return the verdict, and the numbers that differ."""
    before, after = dotted({RESULT: old}), dotted({RESULT: new})
    is_alike = before.keys() == after.keys()
    verdict = _worst(_compare(before[name], after[name], tolerance) for name in before) if is_alike else DIVERGED
    pairs = [pair for name in before.keys() & after.keys() for pair in _numbers(name, before[name], after[name])]
    counts = not math.isinf(tolerance.rtol_of(RESULT))
    return verdict, [pair for pair in pairs if pair.absolute and counts]


def _numbers(name: str, old: Any, new: Any) -> Iterator[Deviation]:
    """Yield the numbers that stand at the same place of two results."""
    if isinstance(old, list) and isinstance(new, list):
        for place, pair in enumerate(zip(old, new, strict=False)):
            yield from _numbers(f"{name}[{place}]", *pair)
    elif isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in old.keys() & new.keys():
            yield from _numbers(f"{name}.{key}", old[key], new[key])
    elif is_number(old) and is_number(new):
        yield Deviation(name, None, old, new, None)


def _compare(old: Any, new: Any, tolerance: Tolerance) -> str:
    """Return the verdict on two values: numbers within the tolerance, everything else by equality."""
    pairs = _paired(old, new)
    if pairs is not None:
        return _worst(_compare(*pair, tolerance) for pair in pairs)
    if not (is_number(old) and is_number(new)):
        return IDENTICAL if type(old) is type(new) and old == new else DIVERGED
    if old == new or (old != old and new != new):
        return IDENTICAL
    rtol = tolerance.rtol_of(RESULT)
    return WITHIN if math.isinf(rtol) or abs(new - old) <= tolerance.atol + rtol * abs(old) < math.inf else DIVERGED


def _paired(old: Any, new: Any) -> list[tuple[Any, Any]] | None:
    """Return the items of two lists of one length, or of two mappings with the same keys; None for anything else."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return list(zip(old, new, strict=True))
    if isinstance(old, Mapping) and isinstance(new, Mapping) and old.keys() == new.keys():
        return [(old[key], new[key]) for key in old]
    return None


def _worst(verdicts: Iterable[str]) -> str:
    return max(verdicts, key=RANKS.index, default=IDENTICAL)


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 200 else f"{text[:200]}..."


# ---------------------------------------------------------------------- status


def _reasons_at_the_end(old: Run, new: Run, result: str) -> Iterator[str]:
    """Yield differences besides those of metrics, where `result` is the verdict on the result."""
    if result == DIVERGED:
        yield f"the result differs: recorded {_short(old.result)}, now {_short(new.result)}"
    yield from _status_reasons(old, new)
    yield from _artifact_reasons(old.artifacts, new.artifacts)
    yield from _version_reasons(old, new)
    yield from _odd_value_reasons(old, new)


def _status_reasons(old: Run, new: Run) -> Iterator[str]:
    ends = [run.status.removesuffix("_WITH_LOSS") for run in (old, new)]
    if ends[0] != ends[1]:
        yield f"the status differs: recorded {old.status}, now {new.status}"
    elif ends[0] == "FAILED":
        causes = [cause_of(run) for run in (old, new)]
        if causes[0] != causes[1]:
            yield f"both failed, and not alike: recorded {causes[0]!r}, now {causes[1]!r}"


def cause_of(run: Run) -> str:
    """Return the last line of a run's traceback; empty without one."""
    lines = "".join(map(str, list_of(run["fail_trace"]))).strip().splitlines()
    return lines[-1] if lines else ""


def _odd_value_reasons(old: Run, new: Run) -> Iterator[str]:
    values = [[_without_time(line) for line in run.odd_values().splitlines()] for run in (old, new)]
    if values[0] != values[1]:
        yield "logged values that are no numbers differ"


def _without_time(line: bytes) -> Any:
    try:
        return {key: value for key, value in parse_json(line).items() if key != "time"}
    except (ValueError, AttributeError):
        return line


# ---------------------------------------------------------------------- files


def _artifact_reasons(before: Mapping[str, Content], after: Mapping[str, Content]) -> Iterator[str]:
    for name in sorted({*before, *after}):
        if name not in after:
            yield f"artifact {name!r}: the new run did not make it"
        elif name not in before:
            yield f"artifact {name!r}: only the new run made it"
        else:
            recorded, now = (digest_of(artifacts[name]) or "gone" for artifacts in (before, after))
            if recorded != now or recorded == "gone":
                yield f"artifact {name!r} differs: recorded sha256 {recorded[:12]}, now {now[:12]}"


def _version_reasons(old: Run, new: Run) -> Iterator[str]:
    logged = [_versions(run) for run in (old, new)]
    for name in sorted({*logged[0], *logged[1]}):
        recorded, now = (", ".join(digest[:12] for digest in versions.get(name, ())) or "none" for versions in logged)
        if logged[0].get(name) != logged[1].get(name):
            yield f"versions of the artifact {name!r} that were logged differ: recorded {recorded}, now {now}"


def _versions(run: Run) -> dict[str, list[str]]:
    versions: dict[str, list[str]] = {}
    for entry in mappings_in(run["artifacts_logged"]):
        versions.setdefault(str(entry.get("name")), []).append(str(entry.get("digest")))
    return versions


def _media_notes(old: Run, new: Run, *, is_cut_off: bool) -> list[str]:
    before, after = ([_medium(entry) for entry, _ in run.media_entries()] for run in (old, new))
    after = after[: len(before)] if is_cut_off else after
    differing = [f"{a[0]} at step {a[1]}" for a, b in zip(before, after, strict=False) if a != b]
    notes = []
    if differing:
        notes.append(
            f"{len(differing)} of {len(before)} images, tables and so on differ, which does not affect the verdict: "
            f"{list_text(differing)}"
        )
    if len(before) != len(after):
        counts = f"{len(before)} images, tables and so on were recorded, now {len(after)}"
        notes.append(f"{counts}, which does not affect the verdict")
    return notes


def _medium(entry: Mapping[str, Any]) -> tuple:
    return (entry.get("name"), entry.get("step"), entry.get("kind"), entry.get("sha256") or str(entry.get("file")))
