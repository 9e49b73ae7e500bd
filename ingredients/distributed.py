"""Ingredient `distributed`: how the processes of one training work together, where `torchrun` started several.

    torchrun --nproc-per-node 2 exp.py with data.batch_size=256

Its settings have no effect on a single process.
"""

from __future__ import annotations

from typing import Any, Literal

from sacristan.configs import Map
from sacristan.ingredients.config.ingredient import Ingredient
from sacristan.ingredients.errors import ConfigError

__all__ = ["ingredient", "join_ranks"]

ingredient = Ingredient("distributed")


@ingredient.config
def config() -> None:
    # backend for exchanging tensors: auto (nccl on GPUs, else gloo), gloo, nccl
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    # compute statistics of batch normalisation over all ranks, not over each rank's own batch
    sync_batch_norm = False
    # split gradients, optimizer states and trained parameters over ranks (FSDP2), to save memory
    shard = False
    # allow parameters that some batches do not use; costs a search through the graph at each step
    find_unused_parameters = False
    # end the run if weights differ between ranks: compared after the first step, and before each validation and state
    check_weights = True
    # seconds that ranks wait for each other in one exchange before the run fails
    timeout_s = 600.0


@ingredient.check
def _check_config(config: Map) -> None:
    """Reject a timeout that is not positive, and nccl without a GPU."""
    if config.timeout_s <= 0:
        raise ConfigError(f"distributed.timeout_s: got {config.timeout_s}, expected more than 0 seconds")
    if config.backend == "nccl":
        import torch

        if not torch.cuda.is_available():
            raise ConfigError("distributed.backend: got nccl, which needs CUDA, and there is none; use auto or gloo")


@ingredient.pre_run_hook
def join_ranks(_config: Map, _run: Any) -> None:
    """Join the other ranks of the run, if there are any; `RankError` if one does not arrive."""
    notices = getattr(_run, "notices", None)
    if notices is not None:
        from sacristan.ingredients.ranks.group import join

        join(notices, _config)
