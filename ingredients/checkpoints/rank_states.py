"""The entries of single ranks in the one state that rank 0 saves for all of them.

Weights and momenta are the same on all ranks. Random streams, and the losses since the last logged one, are not; a
state has them as `ranks`, one entry for each. Its top-level streams are those of rank 0, its top-level losses the means
over ranks, so a single process reads it like any other state.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ingredients.config.seed import global_states
from ingredients.ranks.group import Ranks

__all__ = ["of_all_ranks", "of_rank"]

_log = logging.getLogger(__name__)

_OWN = ("streams", "losses", "scalars")


def of_all_ranks(state: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    """Return the state of a training with the entries of all ranks; called by all.

    Args:
        state: The state of this rank.
        ranks: The processes of the training; a single one adds nothing.
    """
    if ranks.size == 1:
        return state
    own = ranks.gather({name: state[name] for name in _OWN})
    scalars = {name: _means([each["scalars"][name] for each in own]) for name in state["scalars"]}
    return {**state, "losses": _means([each["losses"] for each in own]), "scalars": scalars, "ranks": own}


def of_rank(state: Mapping[str, Any], ranks: Ranks) -> Mapping[str, Any]:
    """Return the state that this rank resumes from, with its own random streams and losses.

    Args:
        state: A state that rank 0 saved.
        ranks: The processes of the training. If their number differs from that in the state, all but rank 0 keep the
            random streams they have now.
    """
    own = state.get("ranks") or [{}]
    if len(own) == ranks.size:
        return {**state, **own[ranks.rank]}
    if not ranks.is_first:
        return {**state, "streams": global_states()}
    _log.warning(
        "the state is of %d processes, and this training has %d: random numbers, such as those of dropout, differ from "
        "those of an uninterrupted training",
        len(own),
        ranks.size,
    )
    return state


def _means(columns: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the means over ranks of values that each has for the same steps."""
    return [sum(map(float, values)) / len(values) for values in zip(*columns, strict=True)]
