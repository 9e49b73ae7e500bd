"""Optional packages that sweeps need."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from runs.errors import MissingExtraError

__all__ = ["needing_extra"]


@contextlib.contextmanager
def needing_extra(extra: str, what: str) -> Iterator[None]:
    """Import optional packages within; a missing one is an error that names the extra.

    Args:
        extra: Its name in setup.cfg.
        what: What needs it.

    Raises:
        MissingExtraError: If a package is missing.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(
            f"{what} needs the package {error.name!r}, which is not installed; "
            f"install it with: pip install 'sacristan[{extra}]'"
        ) from error
