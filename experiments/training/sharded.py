"""Training with parameters, gradients and momenta split over ranks: torch's FSDP2, `fully_shard`.

A copy of the model is split and trained. The model itself stays whole on each rank, and receives the trained weights
before it is measured or saved, so a single process can read every checkpoint.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from experiments.training.ranked import RankedSteps, Scope, Share
from ingredients.datasets.structure import tensors_of

if TYPE_CHECKING:
    from experiments.training.trainer import Trainer
    from ingredients.ranks.group import Ranks

__all__ = ["ShardedSteps"]


class ShardedSteps(RankedSteps):
    """The optimizer steps of one of several ranks, each of which holds a share of every parameter.

    Args:
        trainer: The training; its optimizer holds shares of the parameters, and of its state, afterwards.
        ranks: The processes of the training.
    """

    def __init__(self, trainer: Trainer, ranks: Ranks) -> None:
        super().__init__(trainer, ranks)
        # Outputs of the blocks in a forward pass, where a share may have no weight.
        self._outputs: list[Any] = []
        self._whole = trainer.model
        (optimizer,) = trainer.optimizers.values()
        _hand_over(optimizer, dict(self._whole.named_parameters()), dict(self.model.named_parameters()))

    def _wrapped(self, trained: Mapping[str, nn.Parameter]) -> nn.Module:
        ranks = self._ranks
        ranks.send_tensors(self.model)
        mesh = init_device_mesh(self._trainer.amp.device.type, (ranks.size,))
        self.model = split = copy.deepcopy(self.model).train()
        for module in [module for module in split.modules() if isinstance(module, nn.ModuleList | nn.Sequential)][::-1]:
            for child in module:
                if any(True for _ in child.parameters()) and not isinstance(child, nn.ModuleList | FSDPModule):
                    fully_shard(child, mesh=mesh)
        self.scope = Scope(split)
        fully_shard(self.scope, mesh=mesh)
        return self.scope

    def _called(self, compute: Callable[[], Tensor], share: Share, name: str) -> Tensor:
        self.wrappers[name].set_requires_gradient_sync(share.is_last)  # type: ignore[operator]  # of FSDPModule
        if self._counts_samples:
            return self.wrappers[name](compute)
        blocks = [module for module in self.model.modules() if isinstance(module, FSDPModule) or module is self.model]
        hooks = [block.register_forward_hook(lambda *call: self._outputs.append(call[-1])) for block in blocks]
        try:
            return self.wrappers[name](compute)
        finally:
            self._outputs.clear()
            for hook in hooks:
                hook.remove()

    def _nothing_of(self, loss: Tensor, name: str) -> Tensor:
        # Ranks exchange gradients in the order in which those of the blocks' outputs arrive.
        zeros = [(part * 0).sum().float() for part in tensors_of(self._outputs) if part.requires_grad]
        return torch.stack(zeros).sum()

    def _check_exchange(self, name: str) -> None:
        """Return: no exchange waits for parameters without gradients."""

    @torch.no_grad()
    def settle(self) -> None:
        trained = dict(self.model.named_parameters())
        for name, parameter in self._whole.named_parameters():
            parameter.copy_(_whole_of(trained[name]))
        buffers = dict(self.model.named_buffers())
        for name, buffer in self._whole.named_buffers():
            buffer.copy_(buffers[name])
        super().settle()


def _whole_of(value: Tensor) -> Tensor:
    """Return a tensor that is split over ranks as a whole; all ranks call it."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def _hand_over(
    optimizer: torch.optim.Optimizer, whole: Mapping[str, nn.Parameter], split: Mapping[str, nn.Parameter]
) -> None:
    """Replace the parameters of an optimizer by the split ones, and split its state in the same way."""
    mine: dict[int, Any] = {id(parameter): split[name] for name, parameter in whole.items()}

    def split_alike(value: Any, parameter: Tensor) -> Any:
        if not isinstance(value, Tensor) or value.shape != parameter.shape or not value.ndim:
            return value
        own = mine[id(parameter)]
        return distribute_tensor(value, own.device_mesh, own.placements)

    for group in optimizer.param_groups:
        group["params"] = [mine[id(parameter)] for parameter in group["params"]]
    for parameter, state in list(optimizer.state.items()):
        del optimizer.state[parameter]
        optimizer.state[mine[id(parameter)]] = {key: split_alike(value, parameter) for key, value in state.items()}
