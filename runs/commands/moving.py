"""Commands that move runs between stores, beside `export`: `import`, `copy`, `sync`."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

from sacristan.runs.commands import terminal
from sacristan.runs.commands.terminal.outcomes import CopiedRun, print_copied
from sacristan.runs.commands.terminal.text import print_json, print_text, print_to_stderr
from sacristan.runs.errors import RunsError
from sacristan.runs.query.texts import count_text
from sacristan.runs.transfer.trackers import READERS

if TYPE_CHECKING:
    from sacristan.runs.transfer.foreign import ImportedRun
    from sacristan.runs.transfer.syncing import SyncResult


class Imported(TypedDict):
    """The outcome for one run of another tracker."""

    place: Annotated[str, "Where it was found."]
    outcome: Annotated[
        str,
        "`new`; `completed`, if it replaces what an earlier import read; `present`, if nothing has changed; or "
        "`failed`.",
    ]
    id: Annotated[str | None, "Id in the store; null if it failed, or with `--dry`."]
    num_points: Annotated[int, "Number of its points."]
    left_out: Annotated[list[str], "A sentence for each part that could not be imported, or why the run failed."]


class Import:
    """`import`: import runs from an archive, or past runs of another tracker."""

    JSON = list[CopiedRun] | list[Imported]

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("path", type=Path, metavar="PATH", help="archive, or a file or folder of another tracker")
        help = f"tracker that wrote it: {', '.join(READERS)} (by default found by looking)"
        parser.add_argument("--from", dest="kind", metavar="KIND", help=help)
        parser.add_argument(
            "--tag", dest="tags", action="append", default=[], metavar="TAG", help="tag for the new runs"
        )
        parser.add_argument("--dry", action="store_true", help="read and report, but write nothing")
        help = "limit of an archive's unpacked size (a hundred times its own size, at least 1 GB)"
        parser.add_argument(
            "--max-bytes",
            type=terminal.number(int, lambda value: value > 0, "a whole number above 0"),
            metavar="N",
            help=help,
        )
        terminal.add_json(parser)

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        from sacristan.runs.transfer.archives import import_runs
        from sacristan.runs.transfer.foreign import import_foreign
        from sacristan.runs.transfer.trackers import is_known, others_at

        is_archive = arguments.kind is None and zipfile.is_zipfile(arguments.path) and not is_known(arguments.path)
        if is_archive and (arguments.dry or arguments.tags):
            raise RunsError(f"import: {arguments.path} is an archive of runs, which takes no --dry and no --tag")
        where = terminal.where_of(arguments)
        with contextlib.ExitStack() as stack:
            opened = where
            if arguments.dry and not terminal.is_url(where) and not Path(where).exists():
                opened = stack.enter_context(
                    tempfile.TemporaryDirectory()
                )  # compare with an empty store, and create none
            elif not terminal.is_url(where):
                stack.enter_context(_removing_unused(Path(where)))
            store = stack.enter_context(terminal.open_place(opened, create=True))
            if is_archive:
                print_copied(import_runs(arguments.path, store, arguments.max_bytes), None, in_json=arguments.json)
                return 0
            outcomes = import_foreign(arguments.path, store, arguments.kind, arguments.tags, dry=arguments.dry)
            status = _report(
                outcomes, where=where if arguments.dry else store.where, in_json=arguments.json, dry=arguments.dry
            )
            for other in others_at(arguments.path) if arguments.kind is None else ():
                print_to_stderr(f"note: {arguments.path} also holds runs of {other}; import them with --from {other}")
            return status


@contextlib.contextmanager
def _removing_unused(folder: Path) -> Iterator[None]:
    """Remove the folders that were created for a new store, if an error leaves it without runs."""
    from sacristan.runs.query.index.file import INDEX

    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        yield
    except (RunsError, KeyboardInterrupt):
        with contextlib.suppress(OSError):
            if made and all(each.name.startswith(INDEX) for each in folder.iterdir()):
                for each in [*folder.iterdir()]:
                    each.unlink()
                for each in made:
                    each.rmdir()
        raise


def _report(outcomes: Iterable[ImportedRun], *, where: str, in_json: bool, dry: bool) -> int:
    """Print each outcome as it arrives, and the totals, even if the import is interrupted or the source fails."""
    counts: Counter[str] = Counter()
    rows: list[Imported] = []
    try:
        for run in outcomes:
            counts[run.outcome] += 1
            counts["partial"] += bool(run.left_out) and run.outcome != "failed"
            counts["points"] += run.num_points
            if in_json:
                rows.append(_document(run))
            else:
                _print_run(run, dry=dry)
    except (KeyboardInterrupt, RunsError) as error:
        if isinstance(error, KeyboardInterrupt):
            print_to_stderr("interrupted; runs imported so far are kept: repeat the command to continue")
        if counts:
            _print_sum(rows, counts, where=where, in_json=in_json, dry=dry)
        raise
    _print_sum(rows, counts, where=where, in_json=in_json, dry=dry)
    return 1 if counts["failed"] else 0


def _print_sum(rows: list[Imported], counts: Counter[str], *, where: str, in_json: bool, dry: bool) -> None:
    if in_json:
        print_json(rows)
        return
    parts = [f"{counts[kind]} {kind}" for kind in ("new", "completed", "present", "failed") if counts[kind]]
    partial = f"; {counts['partial']} only in part, see above" if counts["partial"] else ""
    verb = "would import into" if dry else "imported into"
    print_text(f"{verb} {where}: {', '.join(parts) or 'no run'}; {count_text(counts['points'], 'point')}{partial}")


def _document(run: ImportedRun) -> Imported:
    return {
        "place": run.place,
        "outcome": run.outcome,
        "id": run.id,
        "num_points": run.num_points,
        "left_out": list(run.left_out),
    }


def _print_run(run: ImportedRun, *, dry: bool) -> None:
    if run.outcome == "failed":
        print_to_stderr(f"failed: {run.place}: {run.left_out[0]}")
        return
    if run.outcome != "present":
        name = "would be a run" if run.id is None else f"is run {run.id}"
        again = ", which replaces an earlier import" if run.outcome == "completed" else ""
        print_text(f"{run.place} {name}{again}: {count_text(run.num_points, 'point')}")
    for sentence in run.left_out:
        print_to_stderr(f"note: not imported from {run.place}: {sentence}")


class Copy:
    """`copy`: copy runs into another store."""

    JSON = list[CopiedRun]

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        terminal.add_runs(parser)
        parser.add_argument(
            "--to",
            type=terminal.store_address,
            required=True,
            metavar="WHERE",
            help="folder of runs, or mongodb:// URL",
        )
        terminal.add_json(parser)

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        from sacristan.runs.transfer.copying import copy

        with terminal.open_given(arguments) as store:
            chosen = [store.get(key) for key in arguments.runs]
            # Each copy would make and remove the folder for prepared runs, and the next one list the store again.
            with terminal.open_place(arguments.to, create=True) as target, target.staging():
                copied = [copy(run, target) for run in chosen]
                print_copied(copied, [run.id for run in chosen], in_json=arguments.json)
        return 0


class Delivered(TypedDict):
    """The delivery of a run."""

    folder: Annotated[str, "The folder of the run."]
    outcome: Annotated[
        str,
        "`delivered`, `up to date`, `running`, `delivered by another process`, `removed from the database`, "
        "`incomplete` or `failed`.",
    ]
    run_id: Annotated[str | None, "Id in the database; null without one."]
    destination: Annotated[str, "The database, without credentials; empty if it cannot be read."]
    error: Annotated[str | None, "Why the delivery failed; null if it did not."]


class Sync:
    """`sync`: deliver the runs that a database lacks."""

    JSON = list[Delivered]

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        terminal.add_store_place(parser, "folder of runs")
        parser.add_argument(
            "--url",
            help="URL to use instead of the recorded one, such as one with a password; or of another store",
        )
        terminal.add_json(parser)

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        from sacristan.runs.transfer.syncing import deliveries

        results = []
        for result in deliveries(terminal.folder_of(arguments), arguments.url):
            results.append(result)
            if not arguments.json:
                _print_delivered(result)
        num_bad = sum(result.is_bad for result in results)
        if arguments.json:
            print_json([_delivered(result) for result in results])
        elif not results:
            print("no run here was to be delivered to a MongoDB")
        if num_bad:
            print_to_stderr(f"error: {num_bad} of {len(results)} runs could not be delivered")
        return int(num_bad > 0)


def _print_delivered(result: SyncResult) -> None:
    if result.error is not None:
        print_to_stderr(f"{result.folder}: failed: {result.error}")
    else:
        named = f" as run {result.run_id}" if result.run_id is not None else ""
        print_text(f"{result.folder}: {result.outcome}{named} ({result.destination})")


def _delivered(result: SyncResult) -> Delivered:
    return {
        "folder": str(result.folder),
        "outcome": result.outcome,
        "run_id": None if result.run_id is None else str(result.run_id),
        "destination": result.destination,
        "error": result.error,
    }
