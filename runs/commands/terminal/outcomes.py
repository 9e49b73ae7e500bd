"""Results of commands that remove, copy, write and start runs, and `ls` and `get` of a run's files."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict

from sacristan.observers.record.redaction import typed_command
from sacristan.runs.commands.terminal import add_json, add_run, add_store, open_given
from sacristan.runs.commands.terminal.text import Cell, Column, print_json, print_table, print_text, print_to_stderr
from sacristan.runs.query.texts import MISSING, count_text, list_text, size_text

if TYPE_CHECKING:
    from sacristan.runs.rerun.launching import Launch
    from sacristan.runs.stores import Content, Copied, Removed, Run

# `from` is a keyword.
CopiedRun = TypedDict(
    "CopiedRun",
    {
        "id": Annotated[str, "The run in the store that received it."],
        "uid": Annotated[str | None, "The run in the store that received it."],
        "is_new": Annotated[bool, "Whether the store lacked it; an existing run stays unchanged."],
        "left_out": Annotated[list[str], "A sentence for each part that could not be copied."],
        "from": NotRequired[Annotated[str, "Id in the store that it comes from; missing for an archive."]],
    },
)
CopiedRun.__doc__ = "A run that was copied, or imported from an archive."


class RemovedRuns(TypedDict):
    """The runs and files that were removed, and those that were kept."""

    runs: Annotated[list[str], "Ids of the removed runs."]
    contents: Annotated[int, "Number of removed files that no other run uses."]
    bytes: Annotated[int, "Size of these files."]
    young: Annotated[int, "Number of files without a run that are too young to be removed."]
    unreadable: Annotated[list[str], "Ids of unreadable runs, because of which files were kept."]
    kept: Annotated[list[str], "Ids of runs that stay in the trash, because they cannot be deleted."]


def print_removed(removed: Removed, where: str, *, in_json: bool, in_trash: bool = False) -> None:
    """Print which runs and files a store removed, and which it kept; runs in the trash can be restored."""
    if in_json:
        print_json(_removed(removed))
        return
    if removed.runs:
        runs = f"run{'s' * (len(removed.runs) > 1)} {list_text(removed.runs)}"
        if in_trash:
            print_text(f"moved {runs} into the trash; to restore: {typed_command(where, 'restore', removed.runs[0])}")
        else:
            print_text(f"removed {runs}")
    if removed.num_contents or not removed.runs:
        print_text(f"reclaimed {count_text(removed.num_contents, 'file')}, {size_text(removed.num_bytes)}")
    if removed.num_young:
        print_text(
            f"{count_text(removed.num_young, 'file')} without a run, touched within the hour: a later gc takes them"
        )
    if removed.unreadable:
        shown = list_text(removed.unreadable)
        print_to_stderr(
            f"note: files that no other run uses are kept, as what cannot be read may name them: run {shown}"
        )
    if removed.kept:
        print_to_stderr(f"note: run {list_text(removed.kept)} in the trash cannot be deleted; check the permissions")


def _removed(removed: Removed) -> RemovedRuns:
    return {
        "runs": list(removed.runs),
        "contents": removed.num_contents,
        "bytes": removed.num_bytes,
        "young": removed.num_young,
        "unreadable": list(removed.unreadable),
        "kept": list(removed.kept),
    }


def print_copied(copied: Sequence[Copied], ids: Sequence[str] | None, *, in_json: bool) -> None:
    """Print the new id of each copied run; `ids` are the old ones, None for runs from an archive."""
    if in_json:
        print_json([_copied(one, ids[number] if ids else None) for number, one in enumerate(copied)])
        return
    for number, one in enumerate(copied):
        before = f"run {ids[number]}" if ids else str(one.run.uid)
        if one.is_new:
            print_text(f"{before} is run {one.run.id} of {one.run.store.where}")
        else:
            print_text(f"{before} is in {one.run.store.where} already, as run {one.run.id}; nothing is changed")
        print_left_out(one.left_out)


def _copied(one: Copied, id: str | None) -> CopiedRun:
    document: CopiedRun = {
        "id": one.run.id,
        "uid": one.run.uid,
        "is_new": one.is_new,
        "left_out": list(one.left_out),
    }
    if id is not None:
        document["from"] = id
    return document


def print_written(output: Path, what: str, note: str = "", *, with_length: bool = True) -> None:
    """Print what was written to a file; to stderr if the output is a pipe, which may be stdout itself."""
    from sacristan.runs.drawing.output_file import is_stream

    is_file = not is_stream(output)
    length = f", {size_text(output.stat().st_size)}" if is_file and with_length else ""
    for text in filter(None, (f"{output}: {what}{length}", note)):
        (print_text if is_file else print_to_stderr)(text)


def print_problems(problems: Mapping[str, str]) -> None:
    """Print to stderr, in one line, which runs cannot be read completely."""
    if problems:
        shown = list_text([f"run {id} ({why})" for id, why in problems.items()])
        print_to_stderr(f"note: {count_text(len(problems), 'run')} cannot be read completely: {shown}")


def print_left_out(sentences: Sequence[str]) -> None:
    """Print to stderr which parts of a run could not be copied, a sentence for each."""
    for sentence in sentences:
        print_to_stderr(f"note: not taken over: {sentence}")


def begin(launch: Launch, purpose: str, *, dry: bool) -> int:
    """Print to stderr why an experiment starts (a clause), and replace this process with it unless `dry`."""
    from sacristan.runs.rerun.launching import become

    for note in launch.notes:
        print_to_stderr(note)
    if not dry:
        print_to_stderr(purpose)
        become(launch)
    variables = {name: value for name, value in launch.environment.items() if name != "PYTHONPATH" and value}
    words = [*(shlex.quote(f"{name}={value}") for name, value in variables.items()), launch.text]
    print_to_stderr(f"{purpose}:")
    print_to_stderr(f"  cd {shlex.quote(str(launch.cwd))} && {' '.join(words)}")
    return 0


class ListedFile(TypedDict):
    """A file of a run; printed by `ls`."""

    name: Annotated[str, "Its name."]
    bytes: Annotated[int | None, "Its size; null if the file is missing."]


class Fetched(TypedDict):
    """Files that were written; printed by `get`."""

    files: Annotated[list[str], "Paths of the files."]
    refused: Annotated[list[str], "A sentence for each file that could not be written."]


CONTENTS = list[ListedFile] | Fetched


def add_contents(parser: argparse.ArgumentParser, files: str) -> Any:
    """Add the subcommands `ls` and `get`; return what adds more of them."""
    actions = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", dest="action")
    for name, help in (("ls", f"list the {files}"), ("get", f"write the {files} into a folder")):
        action = actions.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
        add_store(action)
        add_run(action)
        if name == "get":
            action.add_argument("names", nargs="*", metavar="NAME", help="names of files (all)")
            action.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="folder to write into")
            action.add_argument("--force", action="store_true", help="replace existing files")
        add_json(action)
    return actions


def list_or_get(arguments: argparse.Namespace, kind: str, contents_of: Callable[[Run], Mapping[str, Content]]) -> int:
    """List the files, or write them into a folder; the exit code is 1 if one could not be written."""
    return _get(arguments, contents_of) if arguments.action == "get" else _list(arguments, kind, contents_of)


def _list(arguments: argparse.Namespace, kind: str, contents_of: Callable[[Run], Mapping[str, Content]]) -> int:
    from sacristan.runs.stores import length_of

    with open_given(arguments) as store:
        run = store.get(arguments.run)
        rows = [(name, length_of(content)) for name, content in contents_of(run).items()]
    if arguments.json:
        print_json([ListedFile(name=name, bytes=length) for name, length in rows])
    elif not rows:
        print_text(f"run {run.id} has no {kind}")
    else:
        cells = [[Cell(name), Cell(MISSING if length is None else size_text(length))] for name, length in rows]
        print_table([Column(is_kept=True), Column(is_number=True)], cells)
    return 0


def _get(arguments: argparse.Namespace, contents_of: Callable[[Run], Mapping[str, Content]]) -> int:
    from sacristan.runs.stores import fetch
    from sacristan.runs.stores.content import choose

    with open_given(arguments) as store:
        contents = choose(contents_of(store.get(arguments.run)), arguments.names)
        done = fetch(contents, arguments.output, overwrite=arguments.force)
    if arguments.json:
        print_json(Fetched(files=[str(path) for path in done.files], refused=list(done.refused)))
    else:
        for path in done.files:
            print_text(str(path))
    for sentence in done.refused:
        print_to_stderr(f"error: {sentence}")
    return 1 if done.refused else 0
