"""Inputs that are integers: kept as such, or made floats, which merge large ones."""

from __future__ import annotations

import logging

import numpy as np

from ingredients.errors import DataError

__all__ = ["EXACT", "check_whole", "tell_merged"]

_log = logging.getLogger(__name__)

# Up to here, float32 holds every integer.
EXACT = 2**24


def check_whole(given: np.dtype, where: str, dtype: str) -> None:
    """Refuse to keep what are no integers as integers.

    Raises:
        DataError: If inputs of the type `given` are to become `int64`, and are none.
    """
    if dtype == "int64" and given.kind not in "biu":
        raise DataError(f"{where}: got inputs of type {given}, and data.dtype=int64 expects integers; convert them")


def tell_merged(values: np.ndarray, where: str) -> None:
    """Warn of integers that float32, which has 24 bits for them, does not tell apart, such as ids."""
    if values.dtype.kind not in "iu" or not values.size or max(int(values.max()), -int(values.min())) <= EXACT:
        return
    before, after = len(np.unique(values)), len(np.unique(values.astype(np.float32)))
    if after < before:
        _log.warning(
            "%s: float32 does not tell integers above 16,777,216 apart: %s different ones become %s; keep them by "
            "data.dtype=int64, number them from 0, or leave them out",
            where,
            f"{before:,}",
            f"{after:,}",
        )
