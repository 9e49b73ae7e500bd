"""Judging whether a run was reproduced: every metric point by point, the result, and the artifacts by content.

    verdict = judge(old, new, Tolerance(rtol=1e-3))
    print(verdict.text)

Times, captured output and the metrics of the machine (`system/...`) never count. What was logged beside numbers
(images, tables, ...) is compared by content and reported, and does not count either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from observers.record.json_text import parse_json
from observers.record.points.points import Series
from runs.errors import RunsError, StoreError
from runs.rerun.results import judge_result
from runs.rerun.verdict import (
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
from runs.stores.content import Content
from runs.stores.run import Run

__all__ = ["check_tolerance", "judge"]

_SHOWN = 5


def check_tolerance(run: Run, tolerance: Tolerance) -> None:
    """Refuse a tolerance of a metric that a run does not have.

    Raises:
        RunsError: If there is one.
    """
    known = [*run.metrics, RESULT]
    for name in tolerance.by_metric:
        if name not in known:
            shown = ", ".join(name for name in known if not name.startswith("system/"))
            raise RunsError(f"tolerance: run {run.id} has no metric {name!r}; there are: {shown}")


def judge(old: Run, new: Run, tolerance: Tolerance | None = None) -> Verdict:
    """Return whether `new` is what `old` was.

    Raises:
        StoreError: If one of them cannot be read.
    """
    tolerance = tolerance or Tolerance()
    is_cut_off = old.status in CUT_OFF
    pairs = {name: (_series(old, name), _series(new, name)) for name in _names(old, new)}
    if is_cut_off:
        pairs = {name: (one, _beginning(other, len(one))) for name, (one, other) in pairs.items() if len(one)}
    judged = [_judge_metric(name, one, other, tolerance) for name, (one, other) in pairs.items()]
    counting = {name: pair for name, pair in pairs.items() if not math.isinf(tolerance.rtol_of(name))}
    reasons = [sentence for name, (one, other) in counting.items() for sentence in _of_points(name, one, other)]
    notes, verdicts = [_of_steps(one.name) for one in judged if one.is_of_steps], [one.verdict for one in judged]
    deviations: list[Deviation] = []
    if is_cut_off:
        notes.append(f"run {old.id} ended {old.status}: only what it logged up to then is compared")
    else:
        result, sentence, deviations = judge_result(old.result, new.result, tolerance)
        verdicts.append(result)
        reasons += [*sentence, *_of_ends(old, new), *_of_files(old, new), *_of_odd_values(old, new)]
    if not (judged or (not is_cut_off and (old.artifacts or old["artifacts_logged"] or old.result is not None))):
        notes.append(f"run {old.id} recorded no metric, no result and no artifact: there was nothing to compare")
    notes += _of_media(old, new, is_cut_off=is_cut_off)
    if reasons:
        verdicts.append(DIVERGED)
    verdict = max(verdicts, key=RANKS.index, default=IDENTICAL)
    deviations += [deviation for one in judged if one.name in counting for deviation in one.extremes]
    first, largest = _first(judged, pairs), _largest(deviations)
    return Verdict(verdict, tuple(judged), first, tuple(reasons), tuple(notes), tolerance, largest)


# ---------------------------------------------------------------------- metrics


def _names(old: Run, new: Run) -> list[str]:
    return sorted(name for name in {*old.metrics, *new.metrics} if not name.startswith("system/"))


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
        # Of two equal infinities there is none, of an infinity and a number an infinite one.
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


def _of_steps(name: str) -> str:
    return (
        f"{name}: all values are the same, only steps differ; if they come from a clock, --tolerance {name}=inf lets "
        "the metric not count"
    )


def _largest(deviations: list[Deviation]) -> tuple[Deviation, ...]:
    """Return the largest deviations: relative, absolute."""
    if not deviations:
        return ()
    # Of those that are equal in one way, the one that is larger in the other.
    relative = max(deviations, key=lambda one: (one.relative, one.absolute))
    return relative, max(deviations, key=lambda one: (one.absolute, one.relative, one is relative))


def _of_points(name: str, old: Series, new: Series) -> Iterator[str]:
    if len(old) == len(new):
        return
    if not len(new):
        yield f"{name}: the new run did not log it; recorded {_points(old)}"
    elif not len(old):
        yield f"{name}: only the new run logged it, {_points(new)}"
    else:
        longer, whose = (old, "recorded") if len(old) > len(new) else (new, "new")
        step = longer.steps[min(len(old), len(new))].item()
        yield f"{name}: recorded {_points(old)}, now {len(new)}; the first only in the {whose} run is at step {step}"


def _points(series: Series) -> str:
    return f"{len(series)} point{'' if len(series) == 1 else 's'}"


def _first(judged: list[MetricVerdict], pairs: Mapping[str, tuple[Series, Series]]) -> Deviation | None:
    """Return the first deviation by step; of those at one step the one that was logged first."""
    found = []
    for one in judged:
        if one.first is not None:
            old = pairs[one.name][0]
            at = old.times[old.steps == one.first.step]
            found.append((one.first.step, at[0] if len(at) and not np.isnan(at[0]) else math.inf, one.name, one.first))
    return min(found, key=lambda entry: entry[:3])[3] if found else None


# ---------------------------------------------------------------------- status


def _of_ends(old: Run, new: Run) -> Iterator[str]:
    ends = [run.status.removesuffix("_WITH_LOSS") for run in (old, new)]
    if ends[0] != ends[1]:
        yield f"the status differs: recorded {old.status}, now {new.status}"
    elif ends[0] == "FAILED":
        causes = [_cause(run) for run in (old, new)]
        if causes[0] != causes[1]:
            yield f"both failed, and not alike: recorded {causes[0]!r}, now {causes[1]!r}"


def _cause(run: Run) -> str:
    trace = run["fail_trace"]
    lines = "".join(map(str, trace)).strip().splitlines() if isinstance(trace, list) else []
    return lines[-1] if lines else ""


def _of_odd_values(old: Run, new: Run) -> Iterator[str]:
    values = [[_without_time(line) for line in run.odd_values().splitlines()] for run in (old, new)]
    if values[0] != values[1]:
        yield "logged values that are no numbers differ"


def _without_time(line: bytes) -> Any:
    try:
        return {key: value for key, value in parse_json(line).items() if key != "time"}
    except (ValueError, AttributeError):
        return line


# ---------------------------------------------------------------------- files


def _of_files(old: Run, new: Run) -> Iterator[str]:
    ours, theirs = old.artifacts, new.artifacts
    for name in sorted({*ours, *theirs}):
        if name not in theirs:
            yield f"artifact {name!r}: the new run did not make it"
        elif name not in ours:
            yield f"artifact {name!r}: only the new run made it"
        else:
            one, other = _sha256(ours[name]), _sha256(theirs[name])
            if one != other or one is None:
                told = [digest[:12] if digest else "gone" for digest in (one, other)]
                yield f"artifact {name!r} differs: recorded sha256 {told[0]}, now {told[1]}"
    versions = [_versions(run) for run in (old, new)]
    for name in sorted({*versions[0], *versions[1]}):
        digests = [", ".join(digest[:12] for digest in version.get(name, ())) or "none" for version in versions]
        if versions[0].get(name) != versions[1].get(name):
            yield f"versions of the artifact {name!r} that were logged differ: recorded {digests[0]}, now {digests[1]}"


def _versions(run: Run) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    entries = run["artifacts_logged"]
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping):
            found.setdefault(str(entry.get("name")), []).append(str(entry.get("digest")))
    return found


def _sha256(content: Content) -> str | None:
    try:
        return content.sha256()
    except (StoreError, OSError):
        return None


def _of_media(old: Run, new: Run, *, is_cut_off: bool) -> list[str]:
    ours, theirs = ([_medium(entry) for entry, _ in run.media_entries()] for run in (old, new))
    theirs = theirs[: len(ours)] if is_cut_off else theirs
    differing = [f"{a[0]} at step {a[1]}" for a, b in zip(ours, theirs, strict=False) if a != b]
    sentences = []
    if differing:
        more = f", and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
        sentences.append(
            f"{len(differing)} of {len(ours)} images, tables and so on differ, which does not count: "
            f"{', '.join(differing[:_SHOWN])}{more}"
        )
    if len(ours) != len(theirs):
        sentences.append(f"{len(ours)} images, tables and so on were recorded, now {len(theirs)}, which does not count")
    return sentences


def _medium(entry: Mapping[str, Any]) -> tuple:
    return (entry.get("name"), entry.get("step"), entry.get("kind"), entry.get("sha256") or str(entry.get("file")))
