"""Sending configs to processes of `multiprocessing` as they are; other pickles hold plain dicts."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from sacristan.configs.map import FrozenList, Map, MutableMap, to_plain

__all__ = ["send_maps_as_maps"]


def send_maps_as_maps(reduction: ModuleType) -> None:
    """Let workers, such as those of a loader, get a config with dotted access."""
    for kind in (Map, MutableMap, FrozenList):
        reduction.ForkingPickler.register(kind, _as_it_is)


def _as_it_is(config: Any) -> tuple:
    return type(config), (to_plain(config),)
