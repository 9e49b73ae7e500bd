"""Continue an existing sweep: check that the command asks for the same, and say where its runs have their code from."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from runs.errors import SweepError
from runs.sweeps.spec.definition import Definition, lasting
from runs.sweeps.study.home import Home
from runs.sweeps.study.own_storage import has_study

__all__ = ["join", "take_up"]


def take_up(home: Home, wanted: Definition) -> tuple[Definition, list[str]]:
    """Take up an existing sweep, whose runs use the script and the options of this command from now on.

    Args:
        home: The home of the sweep.
        wanted: The sweep as the command asks for it: the same experiment, spec, settings and seed.

    Returns:
        The definition, replaced where the two differ, and notes on the differences.

    Raises:
        SweepError: If the sweep asks for something else, or its study is in another storage.
    """
    existing = home.definition()
    for name in ("experiment", "spec", "settings", "seed"):
        before, now = getattr(existing, name), getattr(wanted, name)
        if (lasting(before) != lasting(now)) if name == "spec" else (before != now):
            differing = "other settings" if name == "settings" else f"another {name}"
            raise SweepError(
                f"sweep.id: got {wanted.id!r}, which is a sweep with {differing}; choose another id, or continue it "
                f"with: sweep.agent with sweep.id={wanted.id}"
            )
    notes = _place_notes(existing, wanted)
    if existing.options != wanted.options:
        before, now = (" ".join(options) or "none" for options in (existing.options, wanted.options))
        notes.append(f"runs of sweep {existing.id} had the options {before}; those that start now have {now}")
    storage = _storage(home, existing, wanted)
    current = dataclasses.replace(wanted, storage=storage, created=existing.created)
    if current != existing:
        home.replace(current)
    return current, notes


def _storage(home: Home, found: Definition, wanted: Definition) -> str:
    """Return the storage of the study: a new one if the old one was a mistake, or if the study was copied there.

    Raises:
        SweepError: If points were tried, and the study is not in the wanted storage.
    """
    if wanted.storage in ("", found.storage) or not home.last_claims([0]) or has_study(wanted):
        return wanted.storage or found.storage
    raise SweepError(
        f"sweep.storage: got {wanted.storage!r}, but the study of sweep {found.id} is in"
        f" {found.storage or home.where}; leave it out, copy the study there first, or choose another sweep.id"
    )


def join(found: Definition, experiment: str, base: Path) -> list[str]:
    """Return notes on an agent that is started in another folder than its sweep was.

    Args:
        found: The sweep.
        experiment: The name of the experiment that the agent was started by.
        base: The folder of its sources.

    Raises:
        SweepError: If the sweep is one of another experiment, or its script is not in that folder.
    """
    if found.experiment != experiment:
        raise SweepError(
            f"sweep.id: got {found.id!r}, a sweep of the experiment {found.experiment!r}, expected one of"
            f" {experiment!r}; give the command to the script of {found.experiment!r}"
        )
    here = found.located(base)
    if not here.path.is_file():
        raise SweepError(
            f"sweep.id: got {found.id!r}, whose runs are those of {found.script}, which is not in {here.base}; put it "
            "there, or start the agent in the folder of the sweep"
        )
    return _place_notes(found, here)


def _place_notes(found: Definition, here: Definition) -> list[str]:
    (script, folder), (other, other_folder) = ((one.module or one.path, one.cwd) for one in (found, here))
    if (found.base, script, folder) == (here.base, other, other_folder):
        return []
    return [
        f"sweep {found.id} was started by {script} in {folder}; runs that start now are those of {other} in"
        f" {other_folder}"
    ]
