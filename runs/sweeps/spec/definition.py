"""`Definition`: what a sweep is, so that any agent that sees it can go on with it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from runs.errors import SweepError

__all__ = ["Definition", "lasting"]


@dataclasses.dataclass(frozen=True)
class Definition:
    """Data that every agent of a sweep needs. The searched question never changes.

    Attributes:
        id: Its name: letters and digits.
        experiment: The experiment's name.
        spec: The spec, as `Spec.document` gives it.
        script: The main file, relative to `base` where it lies below it.
        module: The main module, where the experiment is started as one; else empty.
        base: The folder of the experiment's sources, where `sweep.run` was last given.
        cwd: The folder that trials are started in, there.
        settings: What all trials have in common: named configs and assignments, as behind `with`.
        options: Options of the experiment's command line that all trials have, without the database.
        seed: What the sampler's random numbers derive from; and the first seed of each trial, where it has several.
        count: How many points are tried at most; None for all of a grid, or without end.
        storage: URL of an Optuna storage for the study; empty for the sweep's own journal.
        created: When, in ISO format, UTC.
    """

    id: str
    experiment: str
    spec: dict[str, Any]
    script: str
    module: str
    base: str
    cwd: str
    settings: tuple[str, ...]
    options: tuple[str, ...]
    seed: int
    count: int | None
    storage: str
    created: str

    @staticmethod
    def id_of(experiment: str, spec: Mapping[str, Any], settings: tuple[str, ...], seed: int) -> str:
        """Return the id of a sweep that was given none: the same for the same question, so that it is found again."""
        text = json.dumps([experiment, lasting(spec), settings, seed], sort_keys=True, default=str)
        digits = hashlib.sha256(text.encode()).hexdigest()
        # One without such a letter, such as 1234e567, would be read as a number where it is typed.
        places = (place for place in range(len(digits) - 7) if set(digits[place : place + 8]) & set("abcdf"))
        start = next(places, 0)
        return digits[start : start + 8]

    @property
    def path(self) -> Path:
        """The main file."""
        return Path(self.base) / self.script

    def check_parameters(self, names: Iterable[str]) -> None:
        """Refuse parameters that no run of the sweep could vary.

        Raises:
            SweepError: If one is a setting of the sweep itself, or fixed for all runs.
        """
        fixed = {word.partition("=")[0].strip(): word for word in self.settings if "=" in word}
        for name in names:
            if name.partition(".")[0] == "sweep":
                raise SweepError(
                    f"{name}: is a setting of the sweep itself, expected settings of its runs; give it as {name}=..."
                )
            for key, word in fixed.items():
                if name == key or name.startswith(f"{key}.") or key.startswith(f"{name}."):
                    raise SweepError(f"{name}: is searched, but {word} is fixed for all runs; leave one of them out")

    def located(self, lab: Path) -> Definition:
        """Return the same with the sources in the folder `lab`, where they lie or were shipped to on this machine."""
        if str(lab) == self.base:
            return self
        cwd = Path(self.cwd)
        below = cwd.relative_to(self.base) if cwd.is_relative_to(self.base) else Path()
        return dataclasses.replace(self, base=str(lab), cwd=str(lab / below))

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {**dataclasses.asdict(self), "settings": list(self.settings), "options": list(self.options)}

    @classmethod
    def of(cls, document: Mapping[str, Any], where: str) -> Definition:
        """Return what a document says.

        Args:
            document: What `document` returned.
            where: What to call its place in a message.

        Raises:
            SweepError: If it says something else.
        """
        if not isinstance(document, Mapping):
            raise SweepError(f"{where}: got {document!r}, expected a sweep that this version wrote")
        names = [field.name for field in dataclasses.fields(cls)]
        missing = [name for name in names if name not in document]
        if missing:
            raise SweepError(f"{where}: got a sweep without {missing[0]!r}, expected one that this version wrote")
        known = {name: document[name] for name in names}
        for name, kind in (("id", str), ("spec", Mapping), ("settings", list), ("options", list), ("seed", int)):
            if not isinstance(known[name], kind):
                raise SweepError(f"{where}: got {known[name]!r} as {name!r}, expected one that this version wrote")
        return cls(**{**known, "settings": tuple(known["settings"]), "options": tuple(known["options"])})


def lasting(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes a spec the question that it is: all but how many points are tried at most, and texts."""
    return {name: value for name, value in spec.items() if name not in ("run_cap", "name", "description")}
