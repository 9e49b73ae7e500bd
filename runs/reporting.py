"""A comparison as rows of text, as a document for JSON, and as LaTeX."""

from __future__ import annotations

import math
import re
from typing import Any

from runs.comparing import Comparison, GroupResult, PairResult

__all__ = ["as_document", "as_latex", "escape_latex", "group_rows", "pair_rows", "round_to"]

GROUP_HEAD = ("group", "n", "mean", "std", "interval", "best")
PAIR_HEAD = ("groups", "test", "difference", "interval", "p", "p (Holm)", "effect", "verdict")
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
    """Return a value with the digits that its error leaves meaningful: those to the error's second one.

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


def group_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return a row of `GROUP_HEAD` for every group."""
    return [_group_row(group) for group in comparison.groups]


def _group_row(group: GroupResult) -> tuple[str, ...]:
    found = group.sample
    half = None if found.low is None or found.high is None else (found.high - found.low) / 2
    n = f"{found.n} (+{group.num_left_out} left out)" if group.num_left_out else str(found.n)
    best = "-" if group.best is None else f"{group.best:.5g} (run {group.best_run})"
    interval = _interval(found.low, found.high, half)
    return group.label, n, round_to(found.mean, half or found.std), round_to(found.std, found.std), interval, best


def pair_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return a row of `PAIR_HEAD` for every pair."""
    return [_pair_row(pair) for pair in comparison.pairs]


def _pair_row(pair: PairResult) -> tuple[str, ...]:
    test = pair.test
    half = None if test.low is None or test.high is None else (test.high - test.low) / 2
    effect = "-" if test.effect is None else f"{test.effect_name} = {test.effect:.2f}"
    number = f"{test.method}, {test.n} pairs" if test.method == "paired t" else test.method
    row = (
        number,
        round_to(test.value, half),
        _interval(test.low, test.high, half),
        _p(test.p),
        _p(pair.p_holm),
        effect,
    )
    return f"{pair.first} - {pair.second}", *row, verdict(pair)


def verdict(pair: PairResult) -> str:
    """Return what a pair shows, in words."""
    if pair.verdict == "too few":
        return f"nothing can be said: {pair.test.reason}"
    few = " (few runs)" if pair.is_few else ""
    if pair.verdict == "unclear":
        return f"no difference shown{few}"
    return f"{pair.first if pair.verdict == 'first' else pair.second} is better{few}"


def as_document(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as what JSON holds; keys stay as they are from version to version."""
    return {
        "metric": comparison.metric,
        "by": list(comparison.by),
        "over": list(comparison.over),
        "confidence": comparison.confidence,
        "larger_is_better": comparison.larger_is_better,
        "groups": [
            {
                "group": group.label,
                "values": group.values,
                "n": group.sample.n,
                "mean": _number(group.sample.mean),
                "std": _number(group.sample.std),
                "low": _number(group.sample.low),
                "high": _number(group.sample.high),
                "best": _number(group.best),
                "best_run": group.best_run,
                "runs": list(group.runs),
                "num_left_out": group.num_left_out,
            }
            for group in comparison.groups
        ],
        "pairs": [_pair_document(pair) for pair in comparison.pairs],
        "left_out": [
            {"run": entry.run.id, "group": entry.group, "reason": entry.reason} for entry in comparison.left_out
        ],
        "cautions": list(comparison.cautions),
    }


def _pair_document(pair: PairResult) -> dict[str, Any]:
    test = pair.test
    return {
        "first": pair.first,
        "second": pair.second,
        "method": test.method,
        "n": test.n,
        "unpaired": list(pair.unpaired),
        "difference": _number(test.value),
        "low": _number(test.low),
        "high": _number(test.high),
        "t": _number(test.t),
        "df": _number(test.df),
        "p": _number(test.p),
        "p_holm": _number(pair.p_holm),
        "effect": _number(test.effect),
        "effect_name": test.effect_name,
        "verdict": pair.verdict,
        "is_few": pair.is_few,
        "reason": test.reason,
    }


def as_latex(comparison: Comparison) -> str:
    r"""Return the groups as a `tabular` with the rules of booktabs, which the usual templates load.

    Below it stand, as comments, the test of every pair, and every caution.
    """
    head = ["group", "$n$", "mean", "std", f"{comparison.confidence * 100:g}\\% interval", "best"]
    lines = [
        r"% \usepackage{booktabs}",
        f"% {_one_line(comparison.metric)} by {_one_line(', '.join(comparison.by))}",
        r"\begin{tabular}{lrrrcr}",
        r"\toprule",
        f"{' & '.join(head)} \\\\",
        r"\midrule",
    ]
    for group in comparison.groups:
        label, _, mean, std, interval, _ = _group_row(group)
        best = "--" if group.best is None else _latex_number(f"{group.best:.5g}")
        row = [escape_latex(label), str(group.sample.n), *map(_latex_number, (mean, std, interval)), best]
        lines.append(f"{' & '.join(row)} \\\\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [f"% {_one_line('; '.join(row))}" for row in pair_rows(comparison)]
    lines += [f"% caution: {_one_line(caution)}" for caution in comparison.cautions]
    return "\n".join(lines) + "\n"


def escape_latex(text: str) -> str:
    """Return a text that LaTeX sets as it is."""
    return "".join(_LATEX.get(character, character) for character in _one_line(text))


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)


def _latex_number(text: str) -> str:
    return "--" if text == "-" else f"${re.sub(_EXPONENT, _power, text)}$"


def _power(match: re.Match[str]) -> str:
    return rf" \times 10^{{{int(match[1])}}}"


def _interval(low: float | None, high: float | None, half: float | None) -> str:
    return "-" if low is None else f"[{round_to(low, half)}, {round_to(high, half)}]"


def _p(p: float | None) -> str:
    return "-" if p is None else "<0.0001" if p < 1e-4 else f"{p:.4f}" if p < 0.01 else f"{p:.3f}"


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
