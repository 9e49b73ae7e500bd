"""Charts of runs as panels of the workspace, identified by their names.

`scatter(lr, val/loss.min, model.name)` is a kind, and the fields of the runs that it draws.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Self

from sacristan.runs.errors import PlotError
from sacristan.runs.query.names import full_name, short_name, split_names
from sacristan.runs.query.texts import count_text

__all__ = ["Chart", "is_chart"]

# Least and greatest number of fields of each kind.
_NUM_FIELDS = {"scatter": (2, 3), "parallel": (2, 20), "importances": (1, 20), "histogram": (1, 1)}
_EXAMPLES = {
    "scatter": "scatter(lr, result)",
    "parallel": "parallel(lr, width, result)",
    "importances": "importances(result)",
    "histogram": "histogram(result)",
}
_CHART = re.compile(rf"\s*({'|'.join(_NUM_FIELDS)})\((.*)\)\s*", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Chart:
    """A chart of runs.

    Attributes:
        kind: `scatter`, `parallel`, `importances` or `histogram`.
        fields: Short names of fields. Scatter: x, y and the one that colours; importances: the result, then the
            settings, or none for those in which the runs differ.
    """

    kind: str
    fields: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> Self | None:
        """Parse a panel such as `histogram(val/loss.min)`; return None for a panel of curves.

        Unusual names are between backticks. The wrong number of fields raises PlotError.
        """
        match = _CHART.fullmatch(text)
        if match is None:
            return None
        kind, names = match.groups()
        fields = tuple(short_name(full_name(name)) for name in split_names(names))
        least, most = _NUM_FIELDS[kind]
        if not least <= len(fields) <= most:
            expected = f"{least} to {most}" if most > least else str(least)
            raise PlotError(
                f"{kind}: got {count_text(len(fields), 'field')}, expected {expected}, such as {_EXAMPLES[kind]}"
            )
        return cls(kind, fields)


def is_chart(text: str) -> bool:
    """Tell whether a panel is a chart of runs, even an invalid one."""
    return _CHART.fullmatch(text) is not None
