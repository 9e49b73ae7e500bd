"""`artifacts`: the files that a run made, and versions of artifacts with their aliases."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Annotated, NotRequired, TypedDict

from sacristan.observers.record.redaction import typed_command
from sacristan.runs.commands.terminal import add_json, add_store, open_given
from sacristan.runs.commands.terminal.outcomes import CONTENTS, add_contents, list_or_get
from sacristan.runs.commands.terminal.text import (
    Cell,
    Column,
    harmless,
    print_json,
    print_table,
    print_text,
    print_to_stderr,
)
from sacristan.runs.documents.versions import (
    STATISTICS,
    ComparedVersions,
    ShownVersion,
    compared_versions,
    shown_version,
)
from sacristan.runs.errors import RunsError, StoreError
from sacristan.runs.query import dotted, seconds_of
from sacristan.runs.query.texts import MISSING, count_text, list_text, size_text, time_text, value_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sacristan.observers.artifacts.aliases import Move
    from sacristan.runs.stores import Store, StoredArtifact


class AliasMove(TypedDict):
    """A move of an alias."""

    alias: Annotated[str, "The alias."]
    version: Annotated[
        int | None,
        "The number of the version that it names from then on; null if it was removed, or came from another store "
        "with a version that this one lacks.",
    ]
    was: Annotated[int | None, "The number of the version that it named before; null if there was none."]
    by: Annotated[str, "Who moved it."]
    via: Annotated[
        str,
        "How the name of the user is known: `board`, `token` or `proxy`; empty for the user of a process.",
    ]
    run: Annotated[str | None, "The uid of the run whose code moved it; null if no run did."]
    time: Annotated[str, "When, in UTC."]


class ArtifactAliases(TypedDict):
    """The aliases of an artifact; printed by `alias`."""

    name: Annotated[str, "The artifact."]
    aliases: Annotated[list[AliasMove], "The last move of each alias that names a version."]
    moves: NotRequired[Annotated[list[AliasMove], "All moves, oldest first; with `--history`."]]


class RemovedVersions(TypedDict):
    """Versions that were removed; printed by `rm` and `gc`."""

    versions: Annotated[list[str], "Such as `net:v3`."]
    contents: Annotated[int, "Number and size of the files that were deleted."]
    bytes: Annotated[int, "Number and size of the files that were deleted."]


JSON = CONTENTS | ArtifactAliases | ShownVersion | ComparedVersions | RemovedVersions
# Sections of a comparison, in the order in which they are printed.
_PARTS = ("aliases", "data", "config", "metrics", "metadata", "sizes", "files")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    actions = add_contents(parser, "files that a run made, and the checkpoints that it keeps")
    about = "Give a version a name that moves, such as champion; list the names of an artifact, or remove one."
    alias = actions.add_parser("alias", help="list, move or remove names of versions that move", description=about)
    add_store(alias)
    alias.add_argument("name", metavar="NAME", help="the artifact")
    alias.add_argument("version", nargs="?", metavar="VERSION", help="such as v7, latest, or another alias")
    alias.add_argument("alias", nargs="?", metavar="ALIAS", help="name that VERSION gets, such as champion")
    alias.add_argument(
        "--was", metavar="VERSION", help="move ALIAS only if it names this one now; '' if it must be new"
    )
    alias.add_argument("--remove", metavar="ALIAS", help="remove an alias; its history is kept")
    alias.add_argument(
        "--history", action="store_true", help="list who moved which alias, when, from and to which version"
    )
    add_json(alias)
    about = "Show a version with its aliases, files, and the run that made it: command, data and metrics."
    show = actions.add_parser("show", help="show a version, and the run that made it", description=about)
    add_store(show)
    show.add_argument("reference", metavar="NAME[:VERSION]", help="such as net:v7, or net:champion by an alias")
    add_json(show)
    about = "Compare two versions: files, sizes, hashes, and settings, data and metrics of the runs that made them."
    compare = actions.add_parser("compare", help="compare two versions, and the runs that made them", description=about)
    add_store(compare)
    compare.add_argument("a", metavar="A", help="a version, such as net:champion")
    compare.add_argument("b", metavar="B", help="another version, such as net:v7")
    add_json(compare)
    about = "Remove versions of an artifact, after asking. A version that an alias names is not removed."
    rm = actions.add_parser("rm", help="remove versions", description=about)
    add_store(rm)
    rm.add_argument("name", metavar="NAME", help="the artifact")
    rm.add_argument("versions", nargs="+", metavar="VERSION", help="such as v7")
    about = """Remove versions that have been neither logged nor used for some time, after asking, and delete the
    contents that no other version has. The newest version of an artifact stays."""
    gc = actions.add_parser("gc", help="remove old versions", description=about)
    add_store(gc)
    gc.add_argument("names", nargs="*", metavar="NAME", help="artifacts (all)")
    gc.add_argument("--older-than", required=True, type=_age, metavar="AGE", help="such as 30d or 12h")
    gc.add_argument(
        "--keep-aliased", action="store_true", help="leave versions that an alias names; else they are an error"
    )
    for action in (rm, gc):
        action.add_argument("--yes", action="store_true", help="do not ask")
        add_json(action)


def _age(text: str) -> float:
    seconds = seconds_of(text)
    if seconds is None:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a duration such as 30d or 12h")
    return seconds


def main(arguments: argparse.Namespace) -> int:
    """List files or write them into a folder; move aliases; show and compare versions."""
    actions = {"alias": _alias, "show": _show, "compare": _compare, "rm": _rm, "gc": _gc}
    if arguments.action in actions:
        return actions[arguments.action](arguments)
    return list_or_get(arguments, "artifacts", lambda run: {**run.checkpoints, **run.artifacts})


def _alias(arguments: argparse.Namespace) -> int:
    name = arguments.name
    if (arguments.version is None) != (arguments.alias is None) or (arguments.version and arguments.remove):
        arguments.parser.error(f"got one word after {name}: write alias {name} VERSION ALIAS, or --remove ALIAS")
    if arguments.was is not None and not (arguments.alias or arguments.remove):
        arguments.parser.error("--was goes with a move: alias NAME VERSION ALIAS --was VERSION")
    with open_given(arguments) as store:
        moved = None
        if arguments.remove:
            moved = store.aliases.move(name, arguments.remove, None, arguments.was)
        elif arguments.alias:
            version = store.aliases.resolve(f"{name}:{arguments.version}").version
            moved = store.aliases.move(name, arguments.alias, version, arguments.was)
        else:
            store.aliases.resolve(name)
        aliases, moves = store.aliases.of(name), store.aliases.moves(name)
    if arguments.json:
        document = ArtifactAliases(name=name, aliases=[_document(move) for move in aliases.values()])
        print_json(document | {"moves": [_document(move) for move in moves]} if arguments.history else document)
    elif arguments.history:
        _print_moves(name, moves, store.where)
    elif moved is not None:
        now = "removed" if moved.version is None else f"v{moved.version}"
        print_text(f"{name}:{moved.alias} is {now}, was {_named(moved.was)}")
    else:
        _print_moves(name, list(aliases.values()), store.where)
    return 0


def _show(arguments: argparse.Namespace) -> int:
    with open_given(arguments) as store:
        shown = shown_version(store, store.aliases.resolve(arguments.reference))
    if arguments.json:
        print_json(shown)
        return 0
    run = shown["run"]
    facts = [
        ("aliases", ", ".join(shown["aliases"]) or MISSING),
        ("type", shown["type"]),
        ("created", shown["created"] or MISSING),
        ("digest", shown["digest"]),
        ("size", f"{size_text(shown['bytes'])} in {count_text(len(shown['files']), 'file')}"),
        *((f"metadata.{name}", value_text(value)) for name, value in dotted(shown["metadata"]).items()),
        ("made by", f"run {run['id']} {run['name']}, {run['status']}" if run else "no run of this store"),
    ]
    if run is not None:
        facts += [("command", run["command"] or MISSING), ("model card", run["card"])]
        facts += [(f"data {name}", version) for name, version in run["data"].items()]
        facts += [(name, value_text(value)) for name, value in dotted({"result": run["result"]}).items()]
    facts += [("used by", count_text(len(shown["used_by"]), "run"))]
    for gone in shown["removed"]:
        facts.append((f"v{gone['version']} removed", f"{gone['time'].replace('T', ' ')} UTC, by {gone['by']}"))
    print_text(f"{shown['name']}:v{shown['version']}", "bold")
    print_table([Column(is_kept=True), Column()], [[Cell(name), Cell(text)] for name, text in facts])
    if run is not None and run["metrics"]:
        rows = [
            [Cell(name), *(Cell(value_text(values.get(each))) for each in STATISTICS)]
            for name, values in run["metrics"].items()
        ]
        print_table([Column("metric", is_kept=True), *(Column(each, is_number=True) for each in STATISTICS)], rows)
    rows = [[Cell(f["path"]), Cell(size_text(f["bytes"])), Cell((f["sha256"] or "")[:16])] for f in shown["files"]]
    print_table([Column("file", is_kept=True), Column("size", is_number=True), Column("sha256")], rows)
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    with open_given(arguments) as store:
        compared = compared_versions(store, *(store.aliases.resolve(each) for each in (arguments.a, arguments.b)))
    if arguments.json:
        print_json(compared)
        return 0
    if not compared["differ"]:
        print_text(f"{compared['a']} and {compared['b']} have the same files")
    for name in _PARTS:
        part = compared[name]  # type: ignore[literal-required]  # one of the parts
        rows = [(key, value_text(old), value_text(new)) for key, (old, new) in part.changed.items()]
        rows += [(key, MISSING, value_text(new)) for key, new in part.added.items()]
        rows += [(key, value_text(old), MISSING) for key, old in part.removed.items()]
        if rows:
            columns = [Column(name, is_kept=True), Column(compared["a"]), Column(compared["b"])]
            print_table(columns, [[Cell(text) for text in row] for row in rows])
    return 0


def _rm(arguments: argparse.Namespace) -> int:
    with open_given(arguments) as store:
        chosen = [store.aliases.resolve(f"{arguments.name}:{version}") for version in arguments.versions]
        return _remove(store, list({each.version: each for each in chosen}.values()), arguments)


def _gc(arguments: argparse.Namespace) -> int:
    with open_given(arguments) as store:
        removable = store.aliases.removable(arguments.names, arguments.older_than)
        aliased = [(version, aliases) for version, aliases in removable if aliases]
        if aliased and not arguments.keep_aliased:
            named = ", ".join(f"{each.name}:v{each.version} ({', '.join(aliases)})" for each, aliases in aliased)
            raise StoreError(
                f"aliases name versions that are old: {named}; leave them with --keep-aliased, or move the aliases"
            )
        return _remove(store, [version for version, aliases in removable if not aliases], arguments)


def _remove(store: Store, versions: list[StoredArtifact], arguments: argparse.Namespace) -> int:
    """Remove versions, after asking; the exit code is 1 if nobody agreed."""
    names = [f"{each.name}:v{each.version}" for each in versions]
    if versions and not arguments.yes:
        for name, each in zip(names, versions, strict=True):
            uses = count_text(len(each.used_by), "run")
            print_to_stderr(f"  {name}  {size_text(each.num_bytes)}  {time_text(each.created)}, used by {uses}")
        total = f"{count_text(len(versions), 'version')}, {size_text(sum(each.num_bytes for each in versions))}"
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise RunsError(f"artifacts {arguments.action} removes {total}; add --yes if nobody can be asked")
        print(harmless(f"remove {total} from {store.where} for good? [y/N] "), end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print_to_stderr("nothing is removed")
            return 1
    removed = store.aliases.remove_versions(versions)
    if arguments.json:
        print_json(RemovedVersions(versions=names, contents=removed.num_contents, bytes=removed.num_bytes))
    else:
        print_text(f"removed {list_text(names)}" if names else "no version is that old")
        print_text(f"reclaimed {count_text(removed.num_contents, 'file')}, {size_text(removed.num_bytes)}")
    return 0


def _document(move: Move) -> AliasMove:
    return AliasMove(**{key: value for key, value in move.document().items() if key in AliasMove.__annotations__})  # type: ignore[typeddict-item]  # the keys are its own


def _named(version: int | None) -> str:
    return "no version" if version is None else f"v{version}"


def _print_moves(name: str, moves: Sequence[Move], where: str) -> None:
    if not moves:
        command = typed_command(where, "artifacts", "alias", name, "latest", "champion")
        print_text(f"{name} has no aliases; to give one: {command}")
        return
    rows = [
        [
            Cell(move.alias),
            Cell("not in this store" if move.version is None and move.digest else _named(move.version)),
            Cell(_named(move.was)),
            Cell(move.time[:19].replace("T", " ")),
            Cell(move.by),
            Cell(MISSING if move.run is None else move.run[:12]),
        ]
        for move in moves
    ]
    titles = ("alias", "version", "before", "moved (UTC)", "by", "run")
    print_table([Column(title, is_kept=title in ("alias", "version")) for title in titles], rows)
