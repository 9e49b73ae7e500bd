"""`Aliases`: entries at the root of a config that stand for entries of ingredients, such as `lr` for `optimizer.lr`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator
from typing import Any, NoReturn

from sacred.config.config_summary import ConfigSummary
from sacred.run import Run
from sacred.utils import get_by_dotted_path, set_by_dotted_path

from ingredients.errors import ConfigError

__all__ = ["Aliases"]

_UNSET = object()


class Aliases:
    """The aliases of an experiment.

    Attributes:
        targets: The dotted name of the entry that each stands for, by its own name.
    """

    def __init__(self) -> None:
        self.targets: dict[str, str] = {}

    def mirror(self, updates: dict[str, Any]) -> None:
        """Give both names of an entry the value that `updates`, nested, gives one of them.

        Raises:
            ConfigError: If it gives them different ones.
        """
        for name, target in self.targets.items():
            ours = updates.get(name, _UNSET)
            theirs = get_by_dotted_path(updates, target, _UNSET)
            if ours is not _UNSET and theirs is not _UNSET and ours != theirs:
                _refuse(name, ours, target, theirs)
            if ours is not _UNSET:
                set_by_dotted_path(updates, target, ours)
            elif theirs is not _UNSET:
                updates[name] = theirs

    def follow(self, run: Run, updates: dict[str, Any]) -> bool:
        """Add to `updates` what a named config or file set at the root; return whether that was anything.

        Raises:
            ConfigError: If it set both names, to different values; or if there is no such entry.
        """
        changed = False
        for name, target in self.targets.items():
            ours, theirs = run.config.get(name, _UNSET), get_by_dotted_path(run.config, target, _UNSET)
            if _UNSET in (ours, theirs):
                entry = name if ours is _UNSET else target
                raise ConfigError(f"{entry}: there is no such entry, so {name} cannot be an alias of {target}; add it")
            if ours != theirs:
                if target in run.config_modifications.modified:
                    _refuse(name, ours, target, theirs)
                set_by_dotted_path(updates, target, ours)
                updates[name] = ours
                changed = True
        return changed

    def mark(self, changes: ConfigSummary) -> None:
        """Let an alias be marked as changed where the entry that it stands for is."""
        for name, target in self.targets.items():
            for marked in (changes.modified, changes.added):
                marked |= {name} if target in marked else set()
            if target in changes.typechanged:
                changes.typechanged[name] = changes.typechanged[target]

    @contextlib.contextmanager
    def named_as_typed(self, typed: Collection[str]) -> Iterator[None]:
        """Let errors speak of an entry by its alias, where that is among the names that were typed."""
        try:
            yield
        except ConfigError as error:
            message = str(error)
            for name in self.targets.keys() & set(typed):
                message = re.sub(rf"\b{re.escape(self.targets[name])}\b", name, message)
            error.args = (message,)
            raise


def _refuse(name: str, ours: Any, target: str, theirs: Any) -> NoReturn:
    raise ConfigError(
        f"{name} and {target} are one setting, but got {name}={ours} and {target}={theirs}; give one of them"
    )
