"""`absl.flags`: the flags that the script and its modules define, without those of absl itself."""

from __future__ import annotations

from typing import Any

from sacristan.experiments.scripts.capturing import Capture, watched

__all__ = ["attach"]


def attach(module: Any, capture: Capture) -> None:
    """Watch how flags are parsed."""

    def note(_: Any, flags: Any, *__: Any, **___: Any) -> None:
        found = {
            flag.name: flag
            for home, defined in flags.flags_by_module_dict().items()
            if home.partition(".")[0] != "absl"
            for flag in defined
        }
        typed = [name for name, flag in found.items() if flag.present]
        capture.config({name: flag.value for name, flag in found.items()}, typed, library="absl", call="flags")

    module.FlagValues.__call__ = watched(module.FlagValues.__call__, note)
