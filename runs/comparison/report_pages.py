"""Reports as pages: Markdown whose blocks show runs, exported as HTML without requests, or as plain Markdown.

HTML in the text is escaped, links lead to addresses that run nothing, and images come from the board alone or are part
of the text, so that a page asks no other machine.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacristan.configs.nearest import word_suggestion
from sacristan.runs.comparison.report_blocks import (
    Block,
    RunTable,
    chart_table,
    chosen_runs,
    curve_panel,
    end_of_block,
    run_table,
    scatter_of,
    value_of,
)
from sacristan.runs.comparison.reports import whole_page
from sacristan.runs.drawing import Markup, element, harmless
from sacristan.runs.drawing.inline_html import chart, status_form
from sacristan.runs.drawing.output_file import writing
from sacristan.runs.errors import ReportError, RunsError, StoreAwayError, naming_os_errors, needing_extra
from sacristan.runs.query import TIMES, full_name
from sacristan.runs.query.texts import duration_text, is_number, list_text, short_text, time_text
from sacristan.runs.stores import Report, Run, Store

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_core import StateCore
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

# Returns what a page shows for a block.
Show = Callable[[Block], Markup]
_MOST_BLOCKS, _MAX_CELL = 200, 200
_BLOCK = "report_block"
_WITHIN = r"data:image/(?:png|jpeg|gif|webp);"
_IMAGE_WITHIN, _OWN_IMAGE = re.compile(_WITHIN), re.compile(rf"(?:/s/[^/]+)?/content\?|{_WITHIN}")
_MARKED = re.compile(r"([\\`*_\[\]<>|~{}&$#])")
_SIZE: dict[str, Any] = {"width": 640, "height": 300}


# ---------------------------------------------------------------------- Markdown


def rendered(text: str, show: Show, images: re.Pattern[str] = _OWN_IMAGE) -> Markup:
    """Return the HTML of Markdown.

    `show` returns that of each block, and its errors are shown in the block's place. Of images only those whose
    addresses begin with a match of `images` are shown, and the others are links.
    """
    return Markup(_parser().render(text, {"show": show, "images": images, "count": 0}))


@functools.cache
def _parser() -> MarkdownIt:
    with needing_extra("board", "a report"):
        from markdown_it import MarkdownIt
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    parser.inline.ruler.before("escape", _BLOCK, _find_block)
    parser.core.ruler.push(_BLOCK, _lift_blocks)
    for name, rule in (
        (_BLOCK, _block_html),
        ("image", _image_html),
        (
            "table_open",
            lambda *_: '<div class="scroll" tabindex="0" role="region" aria-label="Table"><table class="wide">',
        ),
        ("table_close", lambda *_: "</table></div>"),
    ):
        parser.add_render_rule(name, rule)
    return parser


def _find_block(state: StateInline, silent: bool) -> bool:
    """Take `{{...}}` out of a line; without an end it is the rest of the line, whose error says so."""
    if not state.src.startswith("{{", state.pos):
        return False
    line = state.src.find("\n", state.pos) % (len(state.src) + 1)
    closed = state.src.find("}}", state.pos, line)
    end = end_of_block(state.src, state.pos) or (closed + 2 if closed >= 0 else line)
    if not silent:
        state.push(_BLOCK, "", 0).content = state.src[state.pos : end]
    state.pos = end
    return True


def _lift_blocks(state: StateCore) -> None:
    """Take blocks that have a line of a paragraph for themselves out of it; and let headings begin at `h2`."""
    tokens: list[Token] = []
    headings = [token for token in state.tokens if token.type in ("heading_open", "heading_close")]
    highest = min((int(token.tag[1:]) for token in headings), default=2)
    for token in headings:
        token.tag = f"h{min(6, int(token.tag[1:]) + 2 - highest)}"
    for token in state.tokens:
        for child in token.children or ():
            if child.type == "link_open":
                child.attrSet("rel", "noopener noreferrer nofollow")
        tokens.append(token)
        if token.type == "paragraph_close" and any(map(_is_alone, _lines(tokens[-2]))):
            tokens[-3:] = _lifted(*tokens[-3:])
    state.tokens = tokens


def _lines(inline: Token) -> list[list[Token]]:
    lines: list[list[Token]] = [[]]
    for child in inline.children or ():
        if child.type == "softbreak":
            lines.append([])
        else:
            lines[-1].append(child)
    return lines


def _is_alone(line: Sequence[Token]) -> bool:
    return len(line) == 1 and line[0].type == _BLOCK and not re.match(r"\{\{\s*value\b", line[0].content)


def _lifted(opening: Token, inline: Token, closing: Token) -> Iterator[Token]:
    """Yield the tokens of a paragraph, which ends before each block of its own and begins again after it."""
    for is_alone, lines in itertools.groupby(_lines(inline), _is_alone):
        if is_alone:
            yield from (dataclasses.replace(token, meta={"is_alone": True}, block=True) for [token] in lines)
            continue
        between = dataclasses.replace(closing, type="softbreak", tag="br", nesting=0, block=False)
        children = [child for line in lines for child in (between, *line)]
        yield from (opening, dataclasses.replace(inline, children=children[1:]), closing)


def _block_of(token: Token) -> Block:
    block = Block.of(token.content)
    if block.kind != "value" and not token.meta.get("is_alone"):
        raise ReportError(f"{block.kind} needs a line of its own")
    return block


def _block_html(self: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    token = tokens[index]
    env["count"] += 1
    try:
        if env["count"] > _MOST_BLOCKS:
            raise ReportError(f"a report has {_MOST_BLOCKS} blocks at most; split it")
        return str(env["show"](_block_of(token)))
    except StoreAwayError:
        raise
    except RunsError as error:
        return problem_html(token.content, error)


def problem_html(source: str, error: RunsError) -> Markup:
    """Return what stands in the place of a block that cannot be shown."""
    return element("span", element("code", source), f" {error}", class_="problem")


def _image_html(self: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    token = tokens[index]
    source, label = str(token.attrs.get("src", "")), harmless(token.content)
    if env["images"].match(source):
        return f'<img src="{Markup(element("i", source))[3:-4]}" alt="{Markup(element("i", label))[3:-4]}">'
    return element("a", label or source, href=source, rel="noopener noreferrer nofollow")


# ---------------------------------------------------------------------- tables and values


def html_table(table: RunTable, link: Callable[[Run], str | None] = lambda run: None) -> Markup:
    """Return a table of runs; `link` returns the address of a run's page."""
    numeric = [table.is_numeric(place) if table.rows else False for place in range(len(table.columns))]
    head = [element("th", "run", scope="col")]
    head += [
        element("th", name, scope="col", class_="number" if is_number else None)
        for name, is_number in zip(table.columns, numeric, strict=True)
    ]
    rows = []
    for run, values in table.rows:
        address = link(run)
        name = element("a", run.id, href=address) if address else run.id
        cells = [
            element("td", _cell_html(column, value), class_="number" if is_number else None)
            for column, value, is_number in zip(table.columns, values, numeric, strict=True)
        ]
        rows.append(element("tr", element("th", name, scope="row"), *cells))
    whole = element("table", element("thead", element("tr", *head)), element("tbody", *rows), class_="wide runs")
    note = [element("p", table.note, class_="note dim")] if table.note else []
    return Markup(element("div", whole, class_="scroll", tabindex=0, role="region", aria_label="Runs") + "".join(note))


def _cell_html(column: str, value: Any) -> Markup | str:
    return status_form(str(value or "")) if column == "status" else plain_text(column, value) or "–"


def plain_text(column: str, value: Any) -> str:
    """Return a field as a reader of a report sees it; empty if it is missing."""
    if value is None:
        return ""
    if column == "duration" and is_number(value):
        return duration_text(value)
    return time_text(value) if full_name(column) in TIMES else short_text(value, _MAX_CELL)


# ---------------------------------------------------------------------- files


def read_page(store: Store, name: str, user: str) -> Report:
    """Return a report that a user sees, by its title or id, or the one in a Markdown file."""
    if name.endswith(".md"):
        with naming_os_errors(f"{name} cannot be read", kind=ReportError):
            text = Path(name).read_text(encoding="utf-8", errors="replace")
        heading = re.match(r"\s*#\s+([^\n]+)\n*", text)
        return Report(heading[1], text[heading.end() :]) if heading else Report(Path(name).stem, text)
    visible = store.reports.visible(user)
    matching = [report for report in visible if name in (report.id, report.title)]
    if len(matching) > 1:
        raise ReportError(f"several reports are called {name!r}; give the id: {list_text(one.id for one in matching)}")
    if not matching:
        hint = word_suggestion(name, [one.title for one in visible], "see Reports on the board, or name a .md file")
        raise ReportError(f"there is no report {name!r} in {store.where}; {hint}")
    return matching[0]


def write_page(store: Store, report: Report, path: Path, *, overwrite: bool = False) -> None:
    """Write a report as HTML or as Markdown, as the suffix of the file says."""
    makers = {".html": as_html, ".md": as_markdown}
    if path.suffix not in makers:
        raise ReportError(f"{path}: expected a name that ends in .html or .md")
    content = makers[path.suffix](store, report).encode()
    with writing(path, overwrite=overwrite) as stream:
        stream.write(content)


def as_html(store: Store, report: Report) -> str:
    """Return a report as one HTML file, which asks no machine: curves are SVG, and values as they are now."""

    def show(block: Block) -> Markup:
        if block.kind == "runs":
            return html_table(run_table(store, block))
        if block.kind == "value":
            run, name, value = value_of(store, block)
            return element("span", plain_text(name, value), title=f"run {run.id}, {name}")
        drawn = _drawn(store, block)
        if isinstance(drawn, RunTable):
            return html_table(drawn)
        return element("div", drawn, class_="charts", tabindex=0, role="region", aria_label=block.title)

    return whole_page(report.title, _about(store, report), rendered(report.text, show, _IMAGE_WITHIN))


def _about(store: Store, report: Report) -> str:
    by = f" by {report.author}" if report.author else ""
    version = f", version {report.number}{by}, {time_text(report.at)}" if report.number else ""
    return f"runs of {store.where}{version}"


def _drawn(store: Store, block: Block) -> Markup | RunTable:
    """Return curves or a scatter plot as SVG, and another chart as the table of its runs."""
    if block.kind == "curves":
        panel = curve_panel(block, chosen_runs(store, block))
        is_time = block.text("x") == "wall"
        options = {"log_y": panel.log_y, "is_time": is_time, **_SIZE}
        return chart(panel.metric, panel.curves, x_label=panel.x_label, notes=panel.notes, **options)
    if block.kind == "importances":
        raise ReportError("importances are drawn on the board alone")
    table = chart_table(store, block)
    points = scatter_of(table) if block.kind == "scatter" else None
    if points is None:
        return table
    return chart(f"{table.columns[1]} over {table.columns[0]}", [points], x_label=table.columns[0], **_SIZE)


def as_markdown(store: Store, report: Report) -> str:
    """Return a report as Markdown without blocks: tables, values as they are now, and plots as images in the text."""

    def write(block: Block) -> str:
        if block.kind == "runs":
            return _pipe_table(run_table(store, block))
        if block.kind == "value":
            _, name, value = value_of(store, block)
            return _plain_markdown(plain_text(name, value), value)
        drawn = _drawn(store, block)
        if isinstance(drawn, RunTable):
            return _pipe_table(drawn)
        data = base64.b64encode(drawn.encode()).decode()
        return f"![{_plain_markdown(block.title)}](data:image/svg+xml;base64,{data})"

    return f"# {_plain_markdown(report.title)}\n\n{_replaced(report.text, write)}".rstrip() + "\n"


def _replaced(text: str, write: Callable[[Block], str]) -> str:
    """Return Markdown with its blocks replaced; code keeps them."""
    parts, place = [], 0
    for token in _with_children(_parser().parse(text)):
        at = text.find(token.content, place) if token.content else -1
        if at < 0:
            continue
        if token.type == _BLOCK:
            parts += [text[place:at], _written(token, write)]
            place = at + len(token.content)
        else:  # code
            parts.append(text[place : at + len(token.content)])
            place = at + len(token.content)
    return "".join([*parts, text[place:]])


def _with_children(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield blocks and code, in the order of the text."""
    for token in tokens:
        if token.type in (_BLOCK, "fence", "code_block", "code_inline"):
            yield token
        yield from _with_children(token.children or ())


def _written(token: Token, write: Callable[[Block], str]) -> str:
    try:
        text = write(_block_of(token))
    except StoreAwayError:
        raise
    except RunsError as error:
        text = f"**{_plain_markdown(f'{token.content} {error}')}**"
    return f"\n{text}\n" if token.meta.get("is_alone") else text


def _pipe_table(table: RunTable) -> str:
    numeric = [table.is_numeric(place) for place in range(len(table.columns))]
    lines = [
        ["run", *map(_plain_markdown, table.columns)],
        ["---", *("---:" if is_number else "---" for is_number in numeric)],
    ]
    for run, values in table.rows:
        cells = (
            _plain_markdown(plain_text(column, value), value)
            for column, value in zip(table.columns, values, strict=True)
        )
        lines.append([_plain_markdown(run.id), *cells])
    note = f"\n\n{table.note}" if table.note else ""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + note


def _plain_markdown(text: str, value: Any = None) -> str:
    """Return a text on one line that Markdown shows as it is."""
    return text if is_number(value) else _MARKED.sub(r"\\\1", " ".join(harmless(text).split()))
