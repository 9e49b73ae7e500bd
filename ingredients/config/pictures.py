"""Pictures that commands draw beside what they print."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ingredients.errors import MissingDependencyError

__all__ = ["print_drawn"]


def print_drawn(draw: Callable[[Any, Path], None], found: Any, path: Path) -> None:
    """Draw what a command found, and print where; print the reason if matplotlib is missing or nothing can be written.

    Args:
        draw: Draws `found` to a file.
        found: Printed already, so that a picture that fails loses nothing.
        path: The file.
    """
    try:
        draw(found, path)
    except (MissingDependencyError, OSError) as error:
        print(f"no picture: {error}")
    else:
        print(f"drawn in {path}")
