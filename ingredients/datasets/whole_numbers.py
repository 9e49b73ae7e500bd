"""Integer inputs: kept as int64, or converted to float32, which merges large ones."""

from __future__ import annotations

import logging

import numpy as np

from ingredients.errors import DataError

__all__ = ["EXACT", "check_whole", "warn_of_merged"]

_log = logging.getLogger(__name__)

# float32 represents every integer up to here.
EXACT = 2**24


def check_whole(kind: np.dtype, where: str, dtype: str) -> None:
    """Reject inputs of another type than integers for `data.dtype=int64`.

    Args:
        kind: Type of the inputs.
        where: The setting that names the data, for the message.
        dtype: `float32` or `int64`, the type that inputs become.

    Raises:
        DataError: If `dtype` is `int64` and the inputs are not integers.
    """
    if dtype == "int64" and kind.kind not in "biu":
        raise DataError(f"{where}: got inputs of type {kind}, and data.dtype=int64 expects integers; convert them")


def warn_of_merged(values: np.ndarray, where: str) -> None:
    """Warn of distinct integers, such as ids, that become the same float32.

    Args:
        values: Inputs or targets of any shape, before conversion. float32 has 24 bits for integers.
        where: The setting that names the data, for the warning.
    """
    if values.dtype.kind not in "iu" or not values.size or max(int(values.max()), -int(values.min())) <= EXACT:
        return
    before, after = len(np.unique(values)), len(np.unique(values.astype(np.float32)))
    if after < before:
        _log.warning(
            "%s: float32 cannot tell integers above 16,777,216 apart: %s different ones become %s; keep them with "
            "data.dtype=int64, number them from 0, or leave them out",
            where,
            f"{before:,}",
            f"{after:,}",
        )
