"""The command `replay`: runs the experiment's main function up to its training, which then repeats one step alone.

The training asks `bundle_to_replay` for the bundle, repeats the step that it holds, and raises `Replayed`. So model,
task and the optimizers are those that the experiment itself makes.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sacristan.ingredients.errors import ConfigError
from sacristan.observers.record.schema import CONFIG

__all__ = ["INCIDENT", "Replayed", "bundle_to_replay", "config_of_bundle", "replaying"]

# What was not finite, and where; the last file of a bundle to be written.
INCIDENT = "incident.json"

_bundle: contextvars.ContextVar[Path | None] = contextvars.ContextVar("bundle", default=None)


class Replayed(Exception):  # noqa: N818 - it is no error
    """The training has repeated the step, and ends here.

    Args:
        finding: The cause of the non-finite step; None if it was finite.
    """

    def __init__(self, report: str, finding: Mapping[str, Any] | None) -> None:
        super().__init__(report)
        self.report = report
        self.finding = finding


def bundle_to_replay() -> Path | None:
    """Return the bundle whose step is to be repeated; None in an ordinary training."""
    return _bundle.get()


@contextlib.contextmanager
def replaying(bundle: Path) -> Iterator[None]:
    """Let the training in the block repeat the step of a bundle, and raise `Replayed`."""
    token = _bundle.set(bundle)
    try:
        yield
    finally:
        _bundle.reset(token)


def config_of_bundle(bundle: Any) -> str:
    """Return the path of the config file in a bundle, whose folder is as typed, or None if it was not."""
    expected = "a folder such as my_runs/3/checkpoints/nonfinite-000000120"
    if bundle is None:
        raise ConfigError(f"replay: got no bundle; write replay with bundle=FOLDER, {expected}")
    missing = [name for name in (CONFIG, INCIDENT) if not Path(str(bundle), name).is_file()]
    if missing:
        raise ConfigError(f"bundle: got {bundle!r}, which holds no {missing[0]}; expected {expected}")
    return str(Path(str(bundle), CONFIG))
