"""Runs without their people, machines and places, for blind review.

Each run is first written into a scratch store, with all that names a person, a machine or a place replaced in records,
output, sources, the diff, media, notes and artifacts. Any exporter then writes from that store. What it wrote appears
only after every byte of it was searched for the words (`sacristan.runs.transfer.hidden_words`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sacristan.runs.drawing.output_file import check_output, is_stream
from sacristan.runs.errors import StoreError, naming_os_errors
from sacristan.runs.stores.opening import open_store
from sacristan.runs.stores.run import Run
from sacristan.runs.transfer.anonymous_run import AnonymousRun
from sacristan.runs.transfer.hidden_words import HiddenWords
from sacristan.runs.transfer.identifying_words import IdentifyingWords
from sacristan.runs.transfer.staging import publish, staging_beside
from sacristan.runs.transfer.unloading import unload

__all__ = ["UNPROVEN", "AnonymousRuns", "anonymised"]

UNPROVEN = (
    "words that no record names are not known: add names of people, groups and projects with --hide WORD",
    "the uid and the times of the runs stay",
)
_MOST_FOUND = 10


@dataclasses.dataclass(frozen=True)
class AnonymousRuns:
    """Runs without the words, and where to export them to.

    Attributes:
        common: Names of accounts and machines that are common words: they were removed from their own fields only.
        left_out: A sentence for each part that could not be kept.
        replacements: What is written instead of each word.
    """

    runs: tuple[Run, ...]
    place: Path
    common: tuple[str, ...]
    left_out: tuple[str, ...]
    replacements: dict[str, str]
    _hidden: HiddenWords

    @property
    def unsearched(self) -> dict[str, int]:
        """Parts of the output that were not searched, such as `pixels`, with the number of files; set at the end."""
        return dict(sorted(self._hidden.unsearched.items()))

    @property
    def removed(self) -> dict[str, int]:
        """How often each kind of text was removed, as it contains words in a form that cannot be replaced."""
        return dict(self._hidden.removed)

    @property
    def replaced(self) -> dict[str, tuple[str, int]]:
        """The replacement of each word that was found, and how often it was written."""
        return {word: (self.replacements[word], count) for word, count in sorted(self._hidden.counts.items())}

    def name(self, name: str) -> str:
        """Return what a field or metric of the originals is called in the output."""
        return self._hidden.text(name)


@contextlib.contextmanager
def anonymised(
    runs: Sequence[Run],
    output: str | Path,
    hide: Sequence[str] = (),
    *,
    keep: Sequence[str] = (),
    overwrite: bool = False,
) -> Iterator[AnonymousRuns]:
    """Export runs so that the output names no people, machines and places.

    The block writes the runs to a place beside the output. When it ends, every byte there is searched, and the output
    appears, with the list of what was replaced beside it: `OUTPUT.replaced.json`.
    """
    output = Path(output)
    _check_place(output, overwrite=overwrite)
    words = _words_of(runs, hide, keep)
    hidden, left_out = HiddenWords(words.replacements, keep), list[str]()
    with naming_os_errors(f"{output} cannot be written"), staging_beside(output) as folder:
        for number, run in enumerate(runs, 1):
            staged = unload(AnonymousRun(run, hidden, left_out), folder / "runs", str(number))
            left_out += [f"run {run.id}: {hidden.text(text)}" for text in staged.left_out]
        with open_store(folder / "runs", create=True) as store:
            copies = tuple(store.get(str(number)) for number in range(1, len(runs) + 1))
            common = tuple(sorted(words.common))
            place = folder / "output"
            anonymous = AnonymousRuns(copies, place, common, tuple(left_out), words.replacements, hidden)
            yield anonymous
        if found := list(itertools.islice(hidden.found_in(place), _MOST_FOUND)):
            raise StoreError(f"words to hide are left, so nothing is written: {'; '.join(found)}")
        if not is_stream(output):
            listed = _write_list(folder / "replaced.json", runs, anonymous)
            publish(listed, output.with_name(f"{output.name}.replaced.json"), overwrite=True)
        publish(place, output, overwrite=overwrite)


def _check_place(output: Path, *, overwrite: bool) -> None:
    if not output.is_dir():
        check_output(output, overwrite=overwrite)
    elif any(output.iterdir()):
        raise StoreError(f"{output} has files, which would not be searched; name a new folder")


def _words_of(runs: Sequence[Run], hide: Sequence[str], keep: Sequence[str]) -> IdentifyingWords:
    words = IdentifyingWords(keep)
    for word in hide:
        words.add("hidden", word)
    for run in runs:
        now = run.store.get(run.id)
        if now.is_living or not now.is_whole:
            raise StoreError(f"run {run.id} is {now.status}; export it when it is whole")
        words.note_own(run)
    for run in runs:
        words.take(run)
    if words.own:
        word = min(words.own)
        raise StoreError(
            f"{word!r} names a person or machine, and is part of the name of a setting, metric or source; hide it "
            f"everywhere with --hide {word}, or leave it with --keep {word}"
        )
    return words


def _write_list(path: Path, runs: Sequence[Run], anonymous: AnonymousRuns) -> Path:
    """Write the list of replacements for the authors, and for nobody else."""
    document: dict[str, Any] = {
        "runs": {str(number): run.id for number, run in enumerate(runs, 1)},
        "replaced": {word: {"by": by, "times": count} for word, (by, count) in anonymous.replaced.items()},
        "common": anonymous.common,
        "left_out": anonymous.left_out,
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(document, indent=1))
    return path
