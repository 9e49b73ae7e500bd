"""`Panel`: one set of axes with curves, which a terminal, a picture or a page draws."""

from __future__ import annotations

import dataclasses

from runs.drawing.curve import Curve

__all__ = ["Panel"]


@dataclasses.dataclass(frozen=True)
class Panel:
    """One set of axes.

    Attributes:
        metric: The metric, or what several have in common, such as `loss` of `train/loss` and `val/loss`.
        curves: At least one.
        x_label: Of the axis, with the unit.
        notes: What cannot be seen: runs without the metric, the kind of band; a sentence each.
        log_y: Whether values are drawn logarithmically.
        is_time: Whether positions are seconds since 1970.
    """

    metric: str
    curves: tuple[Curve, ...]
    x_label: str
    notes: tuple[str, ...]
    log_y: bool = False
    is_time: bool = False
