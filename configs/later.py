"""`Later`: stands in for a module that is imported when something of it is first asked for."""

from __future__ import annotations

import importlib
import os
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["Later", "numpy"]

# A process that is forked while another thread imports a module can never import it.
_importing = threading.RLock()
if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(
        before=_importing.acquire, after_in_parent=_importing.release, after_in_child=_importing.release
    )


class Later(ModuleType):
    """Stands in for a module, in whatever thread and before a fork; `sys.modules` has the module alone."""

    def __getattr__(self, name: str) -> Any:
        with _importing:
            module = importlib.import_module(self.__name__)
        value = getattr(module, name)
        setattr(self, name, value)  # the next use does not come here
        return value


if TYPE_CHECKING:
    import numpy
else:
    # It takes 60 ms, which is most of the start of a script that does not use it.
    numpy = Later("numpy")
