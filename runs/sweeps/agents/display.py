"""`display`: the progress of a sweep, as a table in a terminal, elsewhere as a line for each point that ends."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator

from sacristan.runs.sweeps.views.status import Status, Watcher, parameters_text, say, status_lines

__all__ = ["display"]


@contextlib.contextmanager
def display(before: Status, watcher: Watcher) -> Iterator[Callable[[Status], None]]:
    """Yield a function that shows the status of a sweep, without lines for points that were finished in `before`."""
    names = watcher.spec.objective_names
    if not sys.stdout.isatty():
        known = {number for number, point in before.points.items() if point.is_finished}
        yield lambda status: _show_lines(status, names, known)
        return
    from rich.live import Live
    from rich.text import Text

    with Live(refresh_per_second=4) as live, _logging_above():
        yield lambda status: live.update(
            Text("\n".join(status_lines(status, names)), no_wrap=True, overflow="ellipsis"), refresh=True
        )


def _show_lines(status: Status, names: tuple[str, ...], known: set[int]) -> None:
    """Show a line for each finished point that is not known yet, and add it to the known ones."""
    for number, point in status.points.items():
        if not point.is_finished or number in known:
            continue
        known.add(number)
        values = ", ".join(f"{name} {value:.6g}" for name, value in zip(names, point.values, strict=False))
        state = {"COMPLETE": "done", "PRUNED": "pruned", "FAIL": "failed"}[point.state]
        outcome = values if point.state != "FAIL" else point.notes.get("reason", "")
        of = "" if status.limit is None else f"/{status.limit}"
        say(f"[{len(known)}{of}] trial {number} {state}: {outcome}  {parameters_text(point)}")


@contextlib.contextmanager
def _logging_above() -> Iterator[None]:
    """Let log lines go where stderr is redirected to: above the table, not into its lines."""
    terminal = sys.__stderr__
    streaming = [handler for handler in logging.getLogger().handlers if isinstance(handler, logging.StreamHandler)]
    handlers = [handler for handler in streaming if handler.stream is terminal]
    for handler in handlers:
        handler.setStream(sys.stderr)
    try:
        yield
    finally:
        for handler in handlers:
            handler.setStream(terminal)
