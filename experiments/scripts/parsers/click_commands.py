"""`click` and Typer, which has a copy of it: the parameters of the command that runs, and of the groups around it."""

from __future__ import annotations

from typing import Any

from sacristan.experiments.scripts.capturing import Capture, watched

__all__ = ["attach"]

# Where a value came from that somebody typed, or set for this run.
_TYPED = ("COMMANDLINE", "ENVIRONMENT", "PROMPT")


def attach(module: Any, capture: Capture) -> None:
    """Watch how a command makes the context that holds its parameters."""

    def note(context: Any, *_: Any, **options: Any) -> None:
        if options.get("resilient_parsing") or context.resilient_parsing:
            return
        values = {str(name): value for name, value in context.params.items()}
        typed = [name for name in values if getattr(context.get_parameter_source(name), "name", "") in _TYPED]
        if context.parent is not None and context.info_name:
            values["command"] = context.info_name
        if values:
            capture.config(values, typed, library="click", call="command")

    module.Command.make_context = watched(module.Command.make_context, note)
