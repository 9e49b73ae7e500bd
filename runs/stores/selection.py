"""Which runs are listed, in what order, and with which columns: `duration` among them, which no store keeps."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Sequence

from runs.errors import FilterError
from runs.query.filters import Condition, holds, in_order, names_in, parse_filter, parse_words
from runs.query.names import TIMES, full_name
from runs.stores.run import Run
from runs.stores.store import NEWEST_FIRST, Store

__all__ = ["DURATION", "Selection", "conditions"]

DURATION = "duration"
# Fields that every run may have; whether one does is no question of spelling.
_ALWAYS = {"_id", "uid", "status", "command", "result", "parent", "tags", "note", "experiment.name", "host.hostname"}
_ALWAYS |= TIMES
_LAST_SEEN = ("start_time", "queue_time", "stop_time", "heartbeat")


def conditions(words: Iterable[str], tags: Iterable[str] = ()) -> list[Condition]:
    """Return what people wrote as `--where` and `--tag`.

    Raises:
        FilterError: If it makes no sense.
    """
    return [*(parse_words(text) for text in words), *(Condition(f"tags.{tag}", "==", True) for tag in tags)]


@dataclasses.dataclass(frozen=True)
class Selection:
    """What is asked of a store.

    Attributes:
        where: All of these hold.
        sort: A field, or `duration`, with a `-` ahead for the greatest first.
        limit: How many at most.
        columns: Fields to fetch along, or `duration`.
    """

    where: Sequence[Condition] = ()
    sort: str = NEWEST_FIRST
    limit: int | None = None
    columns: Sequence[str] = ()

    def find(self, store: Store) -> list[Run]:
        """Return the runs.

        Raises:
            FilterError: If a field is asked for that no run has; the message names those that are nearest.
            StoreError: If the store cannot be read.
        """
        stored, of_duration = self._split()
        sort, descending = self.sort.removeprefix("-"), self.sort.startswith("-")
        here = bool(of_duration) or sort == DURATION
        columns = [*(name for name in self.columns if name != DURATION), *(_LAST_SEEN if self._needs_times else ())]
        found = store.find(
            parse_filter(stored), NEWEST_FIRST if sort == DURATION else self.sort, None if here else self.limit, columns
        )
        if here:
            found = [run for run in found if all(holds(one, run.duration_s) for one in of_duration)]
            if sort == DURATION:
                found = in_order(found, lambda run: run.duration_s, descending=descending)
            found = found[: self.limit]
        self._check_names(store, found, stored)
        return found

    @property
    def _needs_times(self) -> bool:
        _, of_duration = self._split()
        return bool(of_duration) or DURATION in self.columns or self.sort.removeprefix("-") == DURATION

    def _split(self) -> tuple[list[Condition], list[Condition]]:
        """Return the conditions that stores know of, and those on the duration."""
        parts: tuple[list[Condition], list[Condition]] = ([], [])
        for one in self.where:
            parts[one.name == DURATION].append(one)
        return parts

    def watch(self, store: Store) -> Iterator[Run]:
        """Yield every run that is new or has changed, for ever; see `Store.watch`."""
        stored, of_duration = self._split()
        for run in store.watch(parse_filter(stored)):
            if all(holds(one, run.duration_s) for one in of_duration):
                yield run

    def _check_names(self, store: Store, found: Sequence[Run], stored: Sequence[Condition]) -> None:
        asked = {name: full_name(name) for name in (*self.columns, self.sort.removeprefix("-")) if name != DURATION}
        doubtful = {n: full for n, full in asked.items() if full not in _ALWAYS and all(r[n] is None for r in found)}
        if not found:
            # That nobody has a tag is an answer.
            asked_of = {name for name in names_in(parse_filter(list(stored))) if not name.startswith("tags.")}
            doubtful |= {name: name for name in asked_of - _ALWAYS}
        if not doubtful:
            return
        known = {*store.fields(), *_ALWAYS}
        if known == _ALWAYS:
            return  # there is no run yet
        for name, full in doubtful.items():
            if full not in known and not any(other.startswith(f"{full}.") for other in known):
                raise FilterError(_unknown(name, full, known))


def _unknown(name: str, full: str, known: set[str]) -> str:
    """Return what to say about a field that no run has."""
    names = {_short(other): other for other in sorted(known)}
    near = difflib.get_close_matches(_short(full), names, n=3, cutoff=0.6)
    # What shares hardly more than the first part of the name is no guess beside one that is right but for a letter.
    scores = [difflib.SequenceMatcher(None, _short(full), other).ratio() for other in near]
    near = [other for other, score in zip(near, scores, strict=True) if score > scores[0] - 0.15]
    # A part of the name alone is what people remember.
    last = full.rpartition(".")[2]
    near += [other for other in names if other.rpartition(".")[2] == last and other not in near][: 3 - len(near)]
    hint = f"did you mean {' or '.join(near)}?" if near else "a run's are listed by: python -m runs show latest --json"
    return f"no run has a field {_short(full)!r}; {hint}"


def _short(full: str) -> str:
    """Return a field's name as people type it."""
    for prefix in ("config.", "summary."):
        short = full.removeprefix(prefix)
        if short != full and full_name(short) == full:
            return short
    names = {
        "experiment.name": "name",
        "host.hostname": "host",
        "_id": "id",
        "start_time": "start",
        "stop_time": "stop",
    }
    return names.get(full, full)
