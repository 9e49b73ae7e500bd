"""Commands beside the runs: `docs`, `mcp`, `schema`, `completion`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import sysconfig
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from sacristan.configs.nearest import word_suggestion
from sacristan.runs.commands import reasons_without_json, schemas
from sacristan.runs.commands.terminal import add_store_place, where_of
from sacristan.runs.commands.terminal.text import is_terminal, print_text
from sacristan.runs.errors import RunsError, needing_extra

_LAB = Path(__file__).resolve().parents[2]
_DOCS_EPILOG = """\
Prints the path of the page: of its Markdown, or of its HTML if the documentation is built (build/docs).
On a terminal, the HTML opens in the browser, too."""
_MCP_EPILOG = """\
The client starts this command, and speaks with it over stdin and stdout. It only reads the store, and
ends when stdin is closed. docs/howto/let_an_agent_read_runs.md shows the configuration of clients."""
_SCHEMA_EPILOG = "Without COMMAND, all keys of all commands are printed as a page of Markdown."
_COMPLETION_EPILOG = """\
bash: eval "$(sacristan completion bash)" in ~/.bashrc; zsh: the same with zsh in ~/.zshrc, after compinit;
fish: sacristan completion fish > ~/.config/fish/completions/sacristan.fish"""


class Docs:
    """`docs`: the documentation, or the page that best matches some words."""

    NO_JSON = "it prints a path"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.epilog = _DOCS_EPILOG
        parser.add_argument(
            "words", nargs="*", metavar="WORD", help="words of the page's name or title, such as resume"
        )

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        folder = _folder()
        page = _page(folder, arguments.words) if arguments.words else folder
        name = "index" if page == folder else page.relative_to(folder).with_suffix("")
        built = _LAB / "build" / "docs" / "docs" / f"{name}.html"
        is_built = built.is_file() and folder == _LAB / "docs"
        print_text(str(built if is_built else page))
        if is_built and is_terminal() and _has_browser():
            webbrowser.open(built.as_uri())
        return 0


def _folder() -> Path:
    """Return the folder of the Markdown pages: of the checkout, or where a wheel was installed."""
    installed = Path(sysconfig.get_path("data")) / "share" / "sacristan" / "docs"
    pages = next((folder for folder in (_LAB / "docs", installed) if (folder / "index.md").is_file()), None)
    if pages is None:
        raise RunsError(f"got no documentation in {_LAB / 'docs'} or {installed}; clone the repository to read it")
    return pages


def _page(folder: Path, words: Sequence[str]) -> Path:
    """Return the page with most of the words in its name and title, or else the one where they occur most often."""
    pages = sorted(folder.rglob("*.md"), key=lambda page: (len(page.parts), page))
    wanted = [word.lower() for word in words]

    def fit(page: Path) -> tuple[int, bool, int, int]:
        name = page.stem.lower().replace("_", " ")
        num_in_either = sum(word in f"{name} {_title(page)}" for word in wanted)
        return num_in_either, name.startswith(wanted[0]), sum(word in name for word in wanted), -len(name.split())

    def num_found(page: Path) -> int:
        text = page.read_text(encoding="utf-8").lower()
        return sum(map(text.count, wanted))

    best = max(pages, key=fit)
    if not fit(best)[0]:
        best = max(pages, key=num_found)
    if fit(best)[0] or num_found(best):
        return best
    vocabulary = [word for page in pages for word in (page.stem, *_title(page).split())]
    listed = ", ".join(page.stem for page in pages if page.parent == folder)
    hint = word_suggestion(words[0], vocabulary, f"there are: {listed}")
    raise RunsError(f"{' '.join(words)}: got words that are in no page; {hint}")


def _title(page: Path) -> str:
    with page.open(encoding="utf-8") as stream:
        return next((line.removeprefix("# ").strip().lower() for line in stream if line.startswith("# ")), "")


def _has_browser() -> bool:
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


class Mcp:
    """`mcp`: a server of the Model Context Protocol, for coding agents."""

    NO_JSON = "it is a server"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.epilog = _MCP_EPILOG
        add_store_place(parser, "folder of runs, or mongodb:// URL")

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        with needing_extra("mcp", "the server"):
            import mcp  # noqa: F401

            from sacristan.runs.documents.mcp import serve

        serve(where_of(arguments))
        # A thread may still read an answer that nobody awaits any more.
        sys.stderr.flush()
        os._exit(0)


class Schema:
    """`schema`: the JSON Schema of a command's `--json`."""

    NO_JSON = "it prints a schema"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.epilog = _SCHEMA_EPILOG
        parser.add_argument("name", nargs="?", metavar="COMMAND", help="a command that takes --json")

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        from sacristan.runs.documents import reference_page

        by_command = schemas()
        if arguments.name is None:
            print(reference_page(by_command, reasons_without_json()), end="")
            return 0
        if reason := reasons_without_json().get(arguments.name):
            raise RunsError(f"schema: {arguments.name} has no --json: {reason}")
        if arguments.name not in by_command:
            hint = word_suggestion(arguments.name, by_command)
            raise RunsError(f"schema: got {arguments.name!r}, which is no command with --json; {hint}")
        print(json.dumps(by_command[arguments.name], indent=2))
        return 0


class Completion:
    """`completion`: the script with which a shell completes commands, options and ids of runs."""

    NO_JSON = "it prints a script"

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.epilog = _COMPLETION_EPILOG
        parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")

    @staticmethod
    def main(arguments: argparse.Namespace) -> int:
        import argcomplete

        print(argcomplete.shellcode(["sacristan", "runs"], shell=arguments.shell))
        return 0
