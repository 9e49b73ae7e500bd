"""Names and values of other trackers, as records have them: of runs that are caught as well as of those imported."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from typing import Any


def parse_value(text: str) -> Any:
    """Return the number, boolean or None that a text spells, as trackers write hyperparameters; else the text."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            number = kind(text)
            # Python takes `2024_01_05` for a number, and a name such as `007` is none.
            return text if "_" in text or (kind is int and str(number) != text.strip().removeprefix("+")) else number
    return {"true": True, "false": False, "none": None, "null": None}.get(text.strip().lower(), text)


def label_of_aim(name: str, context: Mapping[str, Any]) -> str:
    """Return the name of a metric with its context: `train/loss`, or `rank_0/loss` for entries other than `subset`."""
    parts = [str(value) if key == "subset" else f"{key}_{value}" for key, value in sorted(context.items())]
    return "/".join([*parts, name])


def part_name(title: str, above: str, names: Collection[str]) -> str:
    """Return the prefix for a nested run's names in the record of its parent: `fold`, or `fold_2` for a second.

    `above` is the prefix of its parent; `names` are those of the parts before, and count the runs without a title.
    """
    title = title or f"run_{len(names) + 1}"
    wanted, number = f"{above}/{title}" if above else title, 1
    while (unused := wanted if number == 1 else f"{wanted}_{number}") in names:
        number += 1
    return unused
