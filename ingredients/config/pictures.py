"""Pictures that commands draw beside what they print."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ingredients.errors import MissingDependencyError

__all__ = ["print_drawn"]


def print_drawn(draw: Callable[[Any, Path], None], found: Any, path: Path) -> None:
    """Draw the result of a command to a file, and print the file's path, or why there is no picture.

    Args:
        draw: Draws `found` to `path`.
        found: The result; it is printed already, so that a picture that fails loses nothing.
        path: The file.
    """
    try:
        draw(found, path)
    except (MissingDependencyError, OSError) as error:
        print(f"no picture: {error}")
    else:
        print(f"drawn in {path}")
