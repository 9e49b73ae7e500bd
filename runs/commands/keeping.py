"""`tag`, `note`, `rm`, `gc`: what people write about runs, and runs that go."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from runs.commands.arguments import Commands, add_command, add_json, add_run, open_given
from runs.commands.terminal import print_json, print_text

if TYPE_CHECKING:
    from runs.stores.removing import Removed
    from runs.stores.run import Run

__all__ = ["add_parser", "add_runs", "size_text"]


def add_parser(commands: Commands) -> None:
    """Add the commands."""
    tag = add_command(commands, "tag", "attach words to a run, by which ls --tag finds it", _tag)
    add_run(tag)
    tag.add_argument("words", nargs="+", metavar="WORD", help="letters, digits, - and _")
    tag.add_argument("--remove", action="store_true", help="take them away")
    add_json(tag)

    note = add_command(commands, "note", "show what is written about a run, or replace it", _note)
    add_run(note)
    note.add_argument("text", nargs="?", metavar="TEXT", help="the new note, - to read it from stdin, '' for none")
    add_json(note)

    rm = add_command(commands, "rm", "remove runs for good, with the files that no other run uses", _rm)
    add_runs(rm)
    rm.add_argument("--yes", action="store_true", help="do not ask")
    add_json(rm)

    help = "remove what crashes left behind, and files that no run uses and nothing touched for an hour"
    add_json(add_command(commands, "gc", help, _gc))


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Add the argument for one or more runs."""
    add_run(parser, "runs", "ids, uids, beginnings of uids, or latest")
    action = parser._actions[-1]
    action.nargs, action.metavar = "+", "RUN"


def _tag(arguments: argparse.Namespace) -> int:
    with open_given(arguments) as store:
        run = store.get(arguments.run)
        words = arguments.words
        run = store.tag(run, remove=words) if arguments.remove else store.tag(run, words)
        if arguments.json:
            print_json({"id": run.id, "uid": run.uid, "tags": run.tags})
        else:
            print_text(f"run {run.id}: {', '.join(run.tags) or 'no tags'}")
    return 0


def _note(arguments: argparse.Namespace) -> int:
    with open_given(arguments) as store:
        run = store.get(arguments.run)
        if arguments.text is not None:
            text = arguments.text
            if text == "-":
                text = sys.stdin.buffer.read().decode("utf-8", "replace").removesuffix("\n")
            run = store.write_note(run, text)
        if arguments.json:
            print_json({"id": run.id, "uid": run.uid, "note": run.note})
        elif arguments.text is None:
            for line in run.note.splitlines():
                print_text(line)
    return 0


def _rm(arguments: argparse.Namespace) -> int:
    from runs.errors import RunsError
    from runs.stores.removing import remove

    with open_given(arguments) as store:
        chosen = [store.get(key) for key in arguments.runs]
        if not arguments.yes:
            if not (sys.stdin.isatty() and sys.stderr.isatty()):
                raise RunsError(
                    f"rm removes {_count(len(chosen), 'run')} for good; say --yes where nobody can be asked"
                )
            if not _is_agreed(chosen, store.where):
                print_text("nothing is removed")
                return 1
        _print_removed(remove(store, chosen), in_json=arguments.json)
    return 0


def _is_agreed(chosen: list[Run], where: str) -> bool:
    from runs.commands.terminal import harmless
    from runs.commands.wording import time_text
    from runs.errors import StoreError

    for run in chosen:
        try:
            words = (run.name, run.status, time_text(run["start_time"]))
        except StoreError:
            words = ("cannot be read",)
        print(harmless(f"  {run.id}  {'  '.join(words)}"), file=sys.stderr)
    print(harmless(f"remove {_count(len(chosen), 'run')} from {where} for good? [y/N] "), end="", file=sys.stderr)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _gc(arguments: argparse.Namespace) -> int:
    from runs.stores.removing import collect

    with open_given(arguments) as store:
        _print_removed(collect(store), in_json=arguments.json)
    return 0


def _print_removed(removed: Removed, *, in_json: bool) -> None:
    if in_json:
        print_json(
            {
                "runs": removed.runs,
                "contents": removed.num_contents,
                "bytes": removed.num_bytes,
                "young": removed.num_young,
                "unreadable": removed.unreadable,
            }
        )
        return
    if removed.runs:
        print_text(f"removed run{'s' if len(removed.runs) > 1 else ''} {', '.join(removed.runs)}")
    if removed.num_contents or not removed.runs:
        print_text(f"reclaimed {_count(removed.num_contents, 'file')}, {size_text(removed.num_bytes)}")
    if removed.num_young:
        print_text(
            f"{_count(removed.num_young, 'file')} without a run, touched within the hour: runs gc takes them later"
        )
    if removed.unreadable:
        shown = ", ".join(removed.unreadable[:5]) + (", ..." if len(removed.unreadable) > 5 else "")
        text = f"note: files that no other run uses are kept, as what cannot be read may name them: run {shown}"
        from runs.commands.terminal import harmless

        print(harmless(text), file=sys.stderr)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def size_text(num_bytes: float) -> str:
    """Return a length with three digits and its unit."""
    power = 0
    while num_bytes >= 999.5 and power < 4:
        num_bytes /= 1000
        power += 1
    unit = ("bytes", "kB", "MB", "GB", "TB")[power]
    return f"{num_bytes:.3g} {unit}" if power else f"{num_bytes:.0f} {unit}"
