"""Names of environment variables by which one process of the lab tells another what it expects."""

from __future__ import annotations

__all__ = ["EXPECT_DATA_VARIABLE"]

# Holds the fingerprint of the data that a run which is reproduced was trained on.
EXPECT_DATA_VARIABLE = "SACRISTAN_EXPECT_DATA"
