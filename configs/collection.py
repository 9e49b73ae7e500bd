"""Garbage collection, paused while modules are loaded and a config is computed: a fifth of the time, for no garbage."""

from __future__ import annotations

import gc

__all__ = ["pause", "resume"]

_is_paused = False


def pause() -> None:
    """Stop garbage collection until `resume`, unless it is switched off already."""
    global _is_paused
    if gc.isenabled():
        gc.disable()
        _is_paused = True


def resume() -> None:
    """Collect garbage again, if `pause` has stopped it."""
    global _is_paused
    if _is_paused:
        _is_paused = False
        gc.freeze()  # modules and config live as long as the process: later collections need not scan them
        gc.enable()
