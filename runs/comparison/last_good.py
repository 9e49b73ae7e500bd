"""The last good run before a failed one, and the settings in which the two differ."""

from __future__ import annotations

from sacristan.runs.errors import FilterError
from sacristan.runs.stores.run import Run
from sacristan.runs.stores.settings import differing

__all__ = ["last_good"]

# Settings that differ in repetitions, too.
_CHANCE = ("seed",)
# Runs that are compared, and entries of each config.
_MAX_RUNS, _MAX_ENTRIES = 20, 2_000


def last_good(run: Run) -> tuple[Run, list[str]] | None:
    """Return the completed run most similar to a failed one, and the config entries, without seeds, that differ.

    Only the last 20 completed runs of the same experiment and command that started before it are compared; of equals,
    the newest wins. None if there is no such run.
    """
    if not run.name or run.get("start_time") is None:
        return None
    same = {"status": "COMPLETED", "experiment.name": run.name, "command": run.command}
    try:
        found = run.store.find(
            {**same, "start_time": {"$lt": run.get("start_time")}}, "-start_time", _MAX_RUNS, ("config", "display_name")
        )
    except FilterError:  # the start of a foreign record may be anything
        return None
    pairs = [(good, differing([run.listed(), good.listed()], _CHANCE, _MAX_ENTRIES)) for good in found]
    return min(pairs, key=lambda pair: len(pair[1]), default=None)
