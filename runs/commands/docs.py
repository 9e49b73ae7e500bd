"""`docs`: the documentation, or the page that best matches some words."""

from __future__ import annotations

import argparse
import sysconfig
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from sacristan.configs.nearest import word_suggestion
from sacristan.runs.commands.terminal.text import is_terminal, print_text
from sacristan.runs.errors import RunsError

__all__ = ["NO_JSON", "add_arguments", "main"]

NO_JSON = "it prints a path"

_LAB = Path(__file__).resolve().parents[2]
_EPILOG = """Prints the path of the page: of its Markdown, or of its HTML if the documentation is built (build/docs).
On a terminal, the HTML opens in the browser, too."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = _EPILOG
    parser.add_argument("words", nargs="*", metavar="WORD", help="words of the page's name or title, such as resume")


def main(arguments: argparse.Namespace) -> int:
    """Open the documentation in a browser if both exist, and print its path."""
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
    """Return the page with most of the words in its name and title, or else the one where they occur most often.

    Of several, a page whose name begins with the first word comes first, then one with more of them in its name.
    """
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
