"""Reports: a comparison as rows of text and as LaTeX, and runs as one HTML file without scripts or requests.

The page suits light and dark screens and paper. Everything that comes from a run is escaped, and the content security
policy of the page lets nothing run or load.
"""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any

from sacristan.configs.map import abbreviated
from sacristan.runs.comparison.comparing import Comparison, GroupResult, PairResult, compare
from sacristan.runs.comparison.panels import View, make_panels
from sacristan.runs.drawing import Markup, element, table
from sacristan.runs.drawing.curve import Panel
from sacristan.runs.drawing.inline_html import chart, status_form
from sacristan.runs.drawing.output_file import check_output, writing
from sacristan.runs.errors import PlotError
from sacristan.runs.query import mapping_of
from sacristan.runs.query.texts import count_text, duration_text, short_text, time_text
from sacristan.runs.stores import Run
from sacristan.runs.stores.settings import differing, flat_config, identity, settings, show

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'"
_STYLE = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")
# Maximum number of metrics to draw when none are named.
_MOST_CURVES = 12
# The most important columns come first: a narrow terminal leaves out the last ones.
PAIR_HEAD = ("difference of", "shows", "mean difference", "p (Holm)", "effect", "test", "p")
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "…": r"\ldots{}",
}

_EXPONENT = re.compile(r"e([+-]\d+)")


@dataclasses.dataclass(frozen=True)
class _Contents:
    """The options of a report; see `write_report`."""

    title: str
    metrics: tuple[str, ...]
    view: View
    compared: str | None
    mode: str


def write_report(
    runs: Sequence[Run],
    path: str | Path,
    *,
    title: str = "Runs",
    metrics: Sequence[str] = (),
    by: Sequence[str] = (),
    over: Sequence[str] = (),
    compared: str | None = None,
    mode: str = "auto",
    x: str = "step",
    smoothing: float = 0.0,
    log_y: bool = False,
    overwrite: bool = False,
) -> Path:
    """Write runs as one HTML file: tables, curves, statistics, differences of the configs, and commands to rerun them.

    Args:
        runs: At least one run, in the order to show them.
        path: The file, which is written as a whole or not at all.
        title: The title of the page.
        metrics: Metrics whose curves to draw; without any, all but those of the machine, twelve at most.
        by: Fields that define groups, whose means are drawn; without any, every run is drawn.
        over: Fields of a repetition, such as `seed`; see `compare`.
        compared: Field to compare the groups by, such as `val/accuracy.max`; None for no statistics.
        mode: The direction that is better: `max`, `min`, or `auto`, as the runs record it.
        x: `step`, `epoch`, `time` since the start, or `wall`, the time of day.
        smoothing: Weight of earlier points, from 0 to below 1, as in TensorBoard.
        log_y: Use logarithmic axes for values.
        overwrite: Whether to replace an existing file.

    Returns:
        The path.

    Raises:
        PlotError: If there are no runs, or none has a metric of `metrics`.
        ComparisonError: If the runs cannot be grouped or compared like this.
        StoreError: If a run cannot be read, the file exists already, or it cannot be written.

    Example:
        with open_store("my_runs") as store:
            write_report(store.find("status=COMPLETED", limit=10), "report.html", overwrite=True)
    """
    view = View(tuple(by), tuple(over), x, smoothing, log_y=log_y)
    contents = _Contents(title, tuple(metrics), view, compared, mode)
    path = Path(path)
    check_output(path, overwrite=overwrite)
    content = _page([run.listed() for run in runs], contents).encode()
    with writing(path, overwrite=overwrite) as stream:
        stream.write(content)
    return path


def _page(runs: list[Run], contents: _Contents) -> str:
    if not runs:
        raise PlotError("there are no runs to report on; see which there are with: sacristan ls")
    now = datetime.now(UTC)
    stores = ", ".join(dict.fromkeys(run.store.where for run in runs))
    about = f"{len(runs)} run{'s' * (len(runs) != 1)} of {stores}, {now:%Y-%m-%d %H:%M} UTC"
    return whole_page(contents.title, about, *_sections(runs, contents))


def whole_page(title: str, about: str, *parts: object) -> str:
    """Return a page without scripts or requests; texts are escaped, and `Markup` is not."""
    body = element("main", element("h1", title), element("p", about, class_="about"), *parts)
    head = element(
        "head",
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        Markup('<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'),
        element("title", title),
        Markup(f"<style>{_STYLE}</style>"),
    )
    return f"<!doctype html>\n{element('html', head, element('body', body), lang='en')}\n"


def _sections(runs: list[Run], contents: _Contents) -> Iterator[Markup]:
    yield run_section(runs)
    if contents.compared is not None:
        view = contents.view
        yield statistics_section(
            compare(runs, view.by, view.over, contents.compared, view.confidence, mode=contents.mode)
        )
    metrics = contents.metrics or _all_metrics(runs)
    if metrics:
        yield curve_section(make_panels(runs, metrics, contents.view), is_time=contents.view.x == "wall")
    if len(runs) > 1:
        yield difference_section(runs)
    yield rerun_section(runs)


def _all_metrics(runs: Sequence[Run]) -> list[str]:
    """Return the metrics of the experiments, losses and validations first."""
    names = {name for run in runs for name in run.metrics if not name.startswith("system/")}
    return sorted(names, key=lambda name: ("loss" not in name, not name.startswith("val/"), name))[:_MOST_CURVES]


# ---------------------------------------------------------------------- sections


_MOST_SETTINGS, _MOST_METRICS, _MOST_COLUMNS, _MOST_DIFFERENCES = 6, 4, 8, 60
_MOST_CHARACTERS, _MOST_DIFF = 100, 20_000
# Packages whose versions matter most.
_PACKAGES = ("torch", "numpy", "sacred", "torchvision", "lightning")


def _section(title: str, *parts: object) -> Markup:
    return element("section", element("h2", title), *parts)


def _wide(content: Markup, label: str) -> Markup:
    """Return a table in a region that scrolls, also by keyboard."""
    return element("div", content, class_="scroll", tabindex=0, role="region", aria_label=label)


def _short(value: Any) -> str:
    return short_text(value, _MOST_CHARACTERS)


def _places(runs: Sequence[Run]) -> dict[Run, int]:
    return {run: place for place, run in enumerate(runs)}


def run_section(runs: Sequence[Run]) -> Markup:
    """Return the table of all runs: status, times, result, differing settings, and each metric's last value."""
    names, places = settings(runs)[:_MOST_SETTINGS], _places(runs)
    metrics = sorted({name for run in runs for name in run.summary if not name.startswith("system/")})
    metrics = sorted(metrics, key=lambda name: (not name.startswith("val/"), "loss" not in name))[:_MOST_METRICS]
    columns = ("run", "experiment", "status", "start", "duration", "result")
    head = (*columns, *names, *(f"{name}, last" for name in metrics))
    rows = []
    for run in runs:
        last = (run.summary.get(name, {}).get("last") for name in metrics)
        row = [element("a", run.id, href=f"#run-{places[run]}"), run.name, status_form(run.status)]
        row += [time_text(run.start_time), duration_text(run.duration_s), _short(run.result)]
        rows.append([*row, *(show(run.get(name)) for name in names), *map(_short, last)])
    texts = {name for name in names if any(isinstance(run.get(name), str) for run in runs)}
    numbers = [place for place, name in enumerate(head) if place >= 4 and name not in texts]
    problems = [
        element("p", f"run {run.id} cannot be read completely: {run.problem}", class_="caution")
        for run in runs
        if run.problem
    ]
    return _section("Runs", _wide(table(head, rows, numbers), "Runs"), *problems)


def statistics_section(comparison: Comparison) -> Markup:
    """Return the tables of a comparison, as `sacristan compare` prints them, with its notes and cautions."""
    groups = table(group_head(comparison), group_rows(comparison), (1, 2, 3, 5))
    parts = [element("p", comparison.title, class_="about"), _wide(groups, "Groups")]
    if comparison.pairs:
        parts += [element("h3", "Differences"), _wide(table(PAIR_HEAD, pair_rows(comparison), (3, 6)), "Differences")]
    parts += [element("p", note, class_="note") for note in notes(comparison)]
    for entry in comparison.excluded:
        parts.append(element("p", f"excluded: run {entry.run.id} ({entry.group}) {entry.reason}", class_="note"))
    parts += [element("p", f"Caution: {caution}", class_="caution") for caution in comparison.cautions]
    return _section("Statistics", *parts)


def curve_section(panels: Sequence[Panel], *, is_time: bool = False) -> Markup:
    """Return a plot for each panel; with `is_time`, positions are seconds since 1970."""
    options: dict[str, Any] = {"is_time": is_time, "width": 540, "height": 280}
    charts = [
        chart(panel.metric, panel.curves, x_label=panel.x_label, notes=panel.notes, log_y=panel.log_y, **options)
        for panel in panels
    ]
    return _section("Curves", element("div", *charts, class_="charts"))


def difference_section(runs: Sequence[Run]) -> Markup:
    """Return the config entries in which the runs differ, with a column for each of the first eight runs."""
    names = differing(runs)
    if not names:
        return _section("Differences of the configs", element("p", "There are none.", class_="about"))
    shown = runs[:_MOST_COLUMNS]
    configs = list(map(flat_config, shown))
    rows = [(name, *(_entry(config, name, configs[0]) for config in configs)) for name in names[:_MOST_DIFFERENCES]]
    head = ("entry", *(f"run {run.id}" for run in shown))
    left_out = [
        count_text(number, what)
        for number, what in ((len(runs) - len(shown), "more run"), (len(names) - len(rows), "more difference"))
        if number > 0
    ]
    more = [element("p", f"and {' and '.join(left_out)}", class_="note")] if left_out else []
    return _section("Differences of the configs", _wide(table(head, rows), "Differences of the configs"), *more)


def _entry(config: Mapping[str, Any], name: str, first: Mapping[str, Any]) -> object:
    if name not in config:
        return element("strong", "–") if name in first else "–"
    is_same = name in first and identity(config[name]) == identity(first[name])
    return show(config[name]) if is_same else element("strong", show(config[name]))


def rerun_section(runs: Sequence[Run]) -> Markup:
    """Return the origin of each run and the commands to rerun it, at the anchor that `run_section` links to."""
    places = _places(runs)
    return _section("How to run them again", *(part for run in runs for part in _rerun(run, places[run])))


def _rerun(run: Run, place: int) -> Iterator[Markup]:
    yield element("h3", f"run {run.id}  {run.name}", id=f"run-{place}")
    git = mapping_of(run.provenance.get("git"))
    yield table((), [(name, value) for name, value in _origins(run, git) if value])
    yield element("pre", "\n".join(_commands(run, git)))
    config = [(name, _short(value)) for name, value in flat_config(run).items()]
    yield element("details", element("summary", f"config, {len(config)} entries"), table((), config))
    if run.diff:
        text = run.diff[:_MOST_DIFF] + ("\n… cut off here" if len(run.diff) > _MOST_DIFF else "")
        yield element("details", element("summary", "changes that were not committed"), element("pre", text))


def _origins(run: Run, git: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "uid", run.uid or ""
    yield "user", str(run.get("user") or "")
    yield "host", run.host
    branch = f" on {git['branch']}" if git.get("branch") else ""
    dirty = ", with changes that were not committed" if git.get("dirty") else ""
    yield "git", f"{git.get('url') or ''} {git['commit']}{branch}{dirty}".strip() if git.get("commit") else ""
    machine, packages = (mapping_of(run.provenance.get(name)) for name in ("machine", "packages"))
    versions = [f"Python {machine['python']}"] if machine.get("python") else []
    versions += [f"{name} {packages[name]}" for name in _PACKAGES if name in packages]
    yield "versions", ", ".join(versions)
    yield "display name", run.display_name
    yield "tags", ", ".join(run.tags)
    yield "note", run.note


def _commands(run: Run, git: Mapping[str, Any]) -> Iterator[str]:
    """Yield the commands that rerun it: from its record, and by hand."""
    store = run.store.where
    yield "# from its record: sources, settings and environment as they were, and a verdict"
    yield shlex.join(["sacristan", "--store", store, "reproduce", run.uid or run.id])
    words = run.get("command_line")
    if isinstance(words, list) and words:
        yield "# by hand"
        if git.get("commit"):
            yield f"git checkout {git['commit']}"
        yield shlex.join(["python", _below(str(words[0]), git.get("root")), *map(str, words[1:])])


def _below(script: str, root: Any) -> str:
    """Return a script's path relative to its repository's root, if it is below it."""
    path = PurePath(script)
    return str(path.relative_to(root)) if isinstance(root, str) and root and path.is_relative_to(root) else script


def round_to(value: float | None, error: float | None) -> str:
    """Round a value to its meaningful digits, up to the second digit of its error, such as half an interval.

    A missing value becomes `-`; an error of None or 0 leaves four digits.

    Source: the Guide to the expression of uncertainty in measurement, 7.2.6,
    https://www.bipm.org/en/committees/jc/jcgm/publications
    """
    if value is None:
        return "-"
    if not error or not math.isfinite(error) or not math.isfinite(value):
        return f"{value:.4g}"
    digits = 1 - math.floor(math.log10(abs(error)))
    greatest = max(abs(value), abs(error))
    if digits > 12 or greatest >= 1e7 or greatest < 1e-4:
        return f"{value:.{max(0, min(12, digits + math.floor(math.log10(greatest))))}e}"
    return f"{value:.{max(0, digits)}f}"


def group_head(comparison: Comparison) -> tuple[str, ...]:
    """Return the headings of the columns of `group_rows`."""
    return (", ".join(comparison.by), "n", "mean", "std", f"{comparison.confidence * 100:g}% interval", "best", "run")


def group_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return a row of texts for each group, best mean first; missing numbers become `-`."""
    return [_group_row(group) for group in comparison.groups]


def _group_row(group: GroupResult) -> tuple[str, ...]:
    n, mean, std, low, high = dataclasses.astuple(group.sample)
    interval, half = _interval(low, high)
    best = "-" if group.best is None else f"{group.best:.5g}"
    return group.name, str(n), round_to(mean, half or std), round_to(std, std), interval, best, group.best_run or "-"


def pair_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return a row of texts for each pair of groups, with the columns of `PAIR_HEAD`; missing numbers become `-`."""
    return [_pair_row(pair) for pair in comparison.pairs]


def _pair_row(pair: PairResult) -> tuple[str, ...]:
    test = pair.test
    interval, half = _interval(test.low, test.high)
    effect = "-" if test.effect is None else f"{test.effect_name} = {test.effect:.2f}"
    method = f"{test.method}, {test.n} pairs" if test.method == "paired t" else test.method
    difference = round_to(test.value, half)
    if half is not None:
        difference += f" {interval}"
    name = f"{pair.first.name} - {pair.second.name}"
    return name, verdict(pair), difference, _p(pair.p_holm), effect, method, _p(test.p)


def notes(comparison: Comparison) -> list[str]:
    """Return notes on the pairs: why there is no test, and which repetitions a paired test omits."""
    lines = []
    for pair in comparison.pairs:
        name = f"{pair.first.name} - {pair.second.name}"
        if pair.test.reason:
            lines.append(f"{name}: {pair.test.reason}")
        if pair.unpaired:
            unpaired = abbreviated(pair.unpaired, 6, " and {} more")
            lines.append(f"{name}: without a partner, and excluded: {unpaired}")
    return lines


def verdict(pair: PairResult) -> str:
    """Return the result of a pair in words, such as `adam is better (few runs)`."""
    if pair.verdict == "too few":
        return "not tested"
    few = " (few runs)" if pair.is_few else ""
    if pair.verdict == "unclear":
        return f"no evidence of a difference{few}"
    return f"{(pair.first if pair.verdict == 'first' else pair.second).name} is better{few}"


def as_latex(comparison: Comparison) -> str:
    r"""Return the groups as a `tabular` with the rules of booktabs, which most templates load; texts are escaped.

    An arrow after the metric shows the better direction. The test of each pair and the cautions follow as comments.
    """
    head = [escape_latex(comparison.metric if text == "mean" else text) for text in group_head(comparison)[:-1]]
    head[2] += r" $\uparrow$" if comparison.larger_is_better else r" $\downarrow$"
    lines = [
        r"% \usepackage{booktabs}",
        f"% {_one_line(comparison.metric)}: {comparison.better}",
        r"\begin{tabular}{lrrrcr}",
        r"\toprule",
        f"{' & '.join(head)} \\\\",
        r"\midrule",
    ]
    for name, n, *numbers, _ in group_rows(comparison):
        lines.append(f"{' & '.join([escape_latex(name), n, *map(_latex_number, numbers)])} \\\\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [f"% {_one_line('; '.join(row))}" for row in (PAIR_HEAD, *pair_rows(comparison)) if comparison.pairs]
    lines += [f"% {_one_line(note)}" for note in notes(comparison)]
    lines += [f"% caution: {_one_line(caution)}" for caution in comparison.cautions]
    return "\n".join(lines) + "\n"


def escape_latex(text: str) -> str:
    """Escape a text, so that LaTeX shows it literally; characters that are not printable become question marks."""
    return "".join(_LATEX.get(character, character) for character in _one_line(text))


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)


def _latex_number(text: str) -> str:
    return "--" if text == "-" else f"${re.sub(_EXPONENT, _power, text)}$"


def _power(match: re.Match[str]) -> str:
    return rf" \times 10^{{{int(match[1])}}}"


def _interval(low: float | None, high: float | None) -> tuple[str, float | None]:
    if low is None or high is None:
        return "-", None
    half = (high - low) / 2
    return f"[{round_to(low, half)}, {round_to(high, half)}]", half


def _p(p: float | None) -> str:
    return "-" if p is None else "<0.0001" if p < 1e-4 else f"{p:.4f}" if p < 0.01 else f"{p:.3f}"
