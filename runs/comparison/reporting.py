"""A comparison as rows of text, and as LaTeX."""

from __future__ import annotations

import dataclasses
import math
import re

from sacristan.configs.map import abbreviated
from sacristan.runs.comparison.comparing import Comparison, GroupResult, PairResult

__all__ = [
    "PAIR_HEAD",
    "as_latex",
    "escape_latex",
    "group_head",
    "group_rows",
    "notes",
    "pair_rows",
    "round_to",
    "verdict",
]

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
    """Return an interval as text, and half its width."""
    if low is None or high is None:
        return "-", None
    half = (high - low) / 2
    return f"[{round_to(low, half)}, {round_to(high, half)}]", half


def _p(p: float | None) -> str:
    return "-" if p is None else "<0.0001" if p < 1e-4 else f"{p:.4f}" if p < 0.01 else f"{p:.3f}"
