"""A sweep that is there already: whether the same is asked, and where its runs have their code from now."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from runs.errors import SweepError
from runs.sweeps.spec.definition import Definition, lasting
from runs.sweeps.study.home import Home
from runs.sweeps.study.own_storage import has_study

__all__ = ["join", "take_up"]


def take_up(home: Home, wanted: Definition) -> tuple[Definition, list[str]]:
    """Return the definition of a sweep that is there, and must ask for the same; and notes on what else differs.

    Its runs are those of the script that `wanted` names, where that lies now, and have its options.

    Raises:
        SweepError: If the sweep asks for something else, or its study is in another storage.
    """
    found = home.definition()
    for name in ("experiment", "spec", "settings", "seed"):
        ours, theirs = getattr(found, name), getattr(wanted, name)
        if (lasting(ours) != lasting(theirs)) if name == "spec" else (ours != theirs):
            raise SweepError(
                f"sweep.id: got {wanted.id!r}, which is a sweep with another {name}; choose another id, or go on with"
                f" it by: sweep.agent with sweep.id={wanted.id}"
            )
    notes = _place_notes(found, wanted)
    if found.options != wanted.options:
        before, now = (" ".join(options) or "none" for options in (found.options, wanted.options))
        notes.append(f"runs of sweep {found.id} had the options {before}; those that start now have {now}")
    storage = _storage(home, found, wanted)
    current = dataclasses.replace(wanted, storage=storage, created=found.created)
    if current != found:
        home.replace(current)
    return current, notes


def _storage(home: Home, found: Definition, wanted: Definition) -> str:
    """Return the storage of the study: another one than before, if that was a mistake, or the study was moved there.

    Raises:
        SweepError: If points were tried, and the study is not in the storage that is wanted.
    """
    if wanted.storage in ("", found.storage) or not home.last_claims([0]) or has_study(wanted):
        return wanted.storage or found.storage
    raise SweepError(
        f"sweep.storage: got {wanted.storage!r}, but the study of sweep {found.id} is in"
        f" {found.storage or home.where}; leave it out, copy the study there first, or choose another sweep.id"
    )


def join(found: Definition, experiment: str, base: Path) -> list[str]:
    """Return what is to be said where an agent of a sweep is started in another folder than the sweep was.

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
