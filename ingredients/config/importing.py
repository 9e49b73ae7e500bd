"""Importing Sacred: without its warning, and without pandas, which takes as long as all the rest together.

Sacred 0.8.7 imports pandas only to teach jsonpickle about data frames and series. That can wait until there are any,
which is when somebody else imports pandas.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from types import ModuleType

import wrapt

__all__ = ["import_sacred"]


def import_sacred() -> None:
    """Import sacred; importing pandas later makes up for what Sacred does with it. Again, it changes nothing."""
    with warnings.catch_warnings(), _pandas_put_off():
        # sacred imports pkg_resources, whose deprecation is no news to its users.
        warnings.filterwarnings("ignore", message="pkg_resources is deprecated", category=UserWarning)
        import sacred  # noqa: F401


@contextlib.contextmanager
def _pandas_put_off() -> Iterator[None]:
    """Let imports of pandas fail meanwhile, as if it was not installed; later ones catch up."""
    # Sacred's TinyDB observer makes classes from it at once, and must have it.
    if {"sacred", "pandas"} & sys.modules.keys() or importlib.util.find_spec("tinydb") is not None:
        yield
        return
    sys.modules["pandas"] = None  # type: ignore[assignment]  # documented: such an import raises ModuleNotFoundError
    try:
        yield
    finally:
        del sys.modules["pandas"]
    wrapt.register_post_import_hook(_catch_up, "pandas")


def _catch_up(pandas: ModuleType) -> None:
    """Do what sacred.optional and sacred.serializer do where pandas is installed."""
    import jsonpickle.ext.pandas
    import sacred.optional

    sacred.optional.has_pandas, sacred.optional.pandas = True, pandas
    jsonpickle.ext.pandas.register_handlers()
