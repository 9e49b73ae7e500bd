"""Continue or extend an existing sweep: check that its question stays, and say where its runs have their code from."""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sacristan.runs.errors import SweepError
from sacristan.runs.query.texts import count_text
from sacristan.runs.sweeps import Definition
from sacristan.runs.sweeps.spec import Spec, read_spec, spec_of
from sacristan.runs.sweeps.spec.distributions import Constant
from sacristan.runs.sweeps.spec.fields import shown
from sacristan.runs.sweeps.study import Study
from sacristan.runs.sweeps.study.home import Home, has_study

# Begins the names of processes that give failed points to agents again.
_RETRIES = "retry-"


def take_up(home: Home, wanted: Definition) -> tuple[Definition, list[str]]:
    """Continue an existing sweep with this command's script and options; return its definition and notes on changes.

    A command with another search space extends the sweep. A command that was given before an extension continues with
    the present space. A different experiment, objective, setting or seed is rejected.
    """
    while True:
        existing = home.definition()
        _check_same(existing, wanted)
        notes = _place_notes(existing, wanted)
        if existing.options != wanted.options:
            before, now = (" ".join(options) or "none" for options in (existing.options, wanted.options))
            notes.append(f"runs of sweep {existing.id} had the options {before}; those that start now have {now}")
        current, extension_notes = _extended(existing, wanted)
        current = dataclasses.replace(current, storage=_storage(home, existing, wanted))
        _check_limit(home, existing, current)
        if current == existing or home.replace(current, existing):
            return current, [*notes, *extension_notes]


def retry_failed(home: Home, definition: Definition) -> list[str]:
    """Let agents run the failed points of a sweep again, also while agents run; return a note on how many there are."""
    study = Study(home, definition, spec_of(definition))
    name = f"{_RETRIES}{secrets.token_hex(6)}"
    home.beat(name)  # an agent that only gives points back: nobody takes them for abandoned before it leaves
    try:
        num = _give_back(home, study, name)
    finally:
        home.leave(name)
    if not num:
        return [f"sweep {home.id} has no failed points to run again"]
    return [f"{count_text(num, 'failed point')} of sweep {home.id} {'runs' if num == 1 else 'run'} again"]


def _give_back(home: Home, study: Study, agent: str) -> int:
    """Give the failed points to agents again, except those that another process gives back; return how many."""
    claims = home.last_claims(_failed(study))
    living = home.living_agents()
    givers = {owner for owner in living if owner.startswith(_RETRIES)}
    free = {number: last.attempt + 1 for number, last in claims.items() if last.owner not in givers}
    while free and not study.definition.has_retried:  # others must know before a point has two trials
        home.replace(dataclasses.replace(study.definition, has_retried=True), study.definition)
        study.renew()
    num = 0
    for number in _failed(study):  # by now, as another process may have been quicker
        home.beat(agent)
        if number in free and home.claims(number, agent).add(free[number]):
            study.retry(number, free[number])
            num += 1
    return num


def _failed(study: Study) -> list[int]:
    return [number for number, point in study.points().items() if point.state == "FAIL"]


# ---------------------------------------------------------------------- extensions


def _check_same(existing: Definition, wanted: Definition) -> None:
    """Reject a command that changes the sweep's question, because its values could not be compared."""
    before, now = spec_of(existing), read_spec(wanted.spec)
    for name, old, new in (
        ("experiment", existing.experiment, wanted.experiment),
        ("settings for all runs", _words(existing.settings), _words(wanted.settings)),
        ("sampler_seed", existing.seed, wanted.seed),
        ("objective", _objective(before), _objective(now)),
        ("number of seeds", before.seeds, now.seeds),
        ("constraints", _words(before.document.get("constraints", ())), _words(now.document.get("constraints", ()))),
        *(() if _knows(existing, wanted) else _extension_pairs(existing, wanted, before, now)),
    ):
        if old != new:
            raise SweepError(
                f"{wanted.id_option}: got {wanted.id!r}, a sweep with the {name} {shown(old)}, not {shown(new)}; keep "
                "that to continue or extend it, or choose another id"
            )


def _extension_pairs(
    existing: Definition, wanted: Definition, before: Spec, now: Spec
) -> Iterator[tuple[str, Any, Any]]:
    """Yield what must stay in an extension: its name, as it was, and as it is wanted."""
    yield "script", Path(existing.script).name, Path(wanted.script).name
    if "grid" in (before.method, now.method):
        yield "method", before.method, now.method
    yield "parameters", _words(before.parameters), _words(name for name in before.parameters if name in now.parameters)
    for name, parameter in before.parameters.items():
        distribution = now.parameters[name].distribution if name in now.parameters else None
        if isinstance(parameter.distribution, Constant) and isinstance(distribution, Constant):
            yield name, parameter.distribution.value, distribution.value


def _words(words: Iterable[str]) -> str:
    return " ".join(words) or "none"


def _objective(spec: Spec) -> str:
    return ", ".join(f"{objective.goal} {objective.name}" for objective in spec.objectives) or "none"


def _space(document: Mapping[str, Any]) -> str:
    return json.dumps([document.get(name) for name in ("method", "parameters", "command")], sort_keys=True)


def _knows(existing: Definition, wanted: Definition) -> bool:
    """Tell whether a sweep has, or had, the search space of a command."""
    return _space(wanted.spec) in [_space(each["spec"]) for each in (*existing.earlier, {"spec": existing.spec})]


def _extended(existing: Definition, wanted: Definition) -> tuple[Definition, list[str]]:
    """Return the definition as it is to be, as a new version if the command has another search space, and notes."""
    continued = dataclasses.replace(
        wanted, created=existing.created, earlier=existing.earlier, has_retried=existing.has_retried
    )
    if _space(existing.spec) == _space(wanted.spec):
        return continued, []
    version = len(existing.earlier) + 1
    unextended = dataclasses.replace(continued, spec=existing.spec, count=existing.count)
    if _knows(existing, wanted):
        return unextended, [
            f"sweep {existing.id} was extended since, to version {version}, and continues with that; for the space of "
            "this command alone, choose another id"
        ]
    earlier = {"spec": existing.spec, "count": existing.count, "until": datetime.now(UTC).isoformat()}
    extended = dataclasses.replace(continued, earlier=(*existing.earlier, earlier))
    before, now = spec_of(existing), spec_of(extended)
    if now.grid is not None and now.size == before.size:
        note = f"sweep {existing.id} has all points of this command already"
        return dataclasses.replace(unextended, count=wanted.count or existing.count), [note]
    names = [name for name, one in now.parameters.items() if one != before.parameters.get(name)]
    changes = _words(names) if now.method == before.method else f"method {now.method}"
    more = "" if now.size is None else f", {count_text(now.size - (before.size or 0), 'more point')}"
    return extended, [
        f"sweep {existing.id} is extended to version {version + 1} ({changes}{more}); what was done is kept"
    ]


def _check_limit(home: Home, existing: Definition, current: Definition) -> None:
    """Reject a limit below the number of points that were tried."""
    limit = spec_of(current).limit(current.count)
    if limit is None or not home.last_claims([limit]):  # the numbers begin with 0, and follow each other
        return
    num = Study(home, existing, spec_of(existing)).num_taken()
    if num > limit:
        count = "--count" if current.is_script else "sweep.count"
        name = count if limit == current.count else "run_cap"
        raise SweepError(
            f"{name}: got {limit}, but {num} points of sweep {existing.id} were tried; give {num} or more, or end it "
            f"with: {existing.action('stop')}"
        )


def _storage(home: Home, existing: Definition, wanted: Definition) -> str:
    """Return the storage of the study: a new one only if no point was tried yet, or if the study was copied there."""
    if wanted.storage in ("", existing.storage) or not home.last_claims([0]) or has_study(wanted):
        return wanted.storage or existing.storage
    raise SweepError(
        f"sweep.storage: got {wanted.storage!r}, but the study of sweep {existing.id} is in"
        f" {existing.storage or home.where}; leave it out, copy the study there first, or choose another sweep.id"
    )


def join(definition: Definition, experiment: str, base: Path) -> list[str]:
    """Return notes on an agent started in another folder than its sweep; reject one of another experiment or script."""
    if definition.experiment != experiment:
        raise SweepError(
            f"sweep.id: got {definition.id!r}, a sweep of the experiment {definition.experiment!r}, expected one of"
            f" {experiment!r}; give the command to the script of {definition.experiment!r}"
        )
    here = definition.located(base)
    if not here.path.is_file():
        raise SweepError(
            f"sweep.id: got {definition.id!r}, whose runs are those of {definition.script}, which is not in "
            f"{here.base}; put it there, or start the agent in the folder of the sweep"
        )
    return _place_notes(definition, here)


def _place_notes(existing: Definition, here: Definition) -> list[str]:
    (script, folder), (other, other_folder) = ((one.module or one.path, one.cwd) for one in (existing, here))
    if (existing.base, script, folder) == (here.base, other, other_folder):
        return []
    return [
        f"sweep {existing.id} was started by {script} in {folder}; runs that start now are those of {other} in"
        f" {other_folder}"
    ]
