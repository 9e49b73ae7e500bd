"""Training with parameters, gradients and momenta split over ranks: torch's FSDP2, `fully_shard`.

A copy of the model is split and trained. The model itself stays whole on each rank, and receives the trained weights
before it is measured or saved, so a single process can read every checkpoint.
"""

from __future__ import annotations

import copy
import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from sacristan.configs.map import abbreviated
from sacristan.experiments.training.ranked import ForwardScope, RankedSteps, Share
from sacristan.ingredients.datasets.collating import tensors_of
from sacristan.ingredients.errors import ConfigError

if TYPE_CHECKING:
    from sacristan.experiments.training import Trainer
    from sacristan.ingredients.ranks.group import Ranks


class ShardedSteps(RankedSteps):
    """The optimizer steps of one of several ranks, each of which holds a share of every parameter."""

    def __init__(self, trainer: Trainer, ranks: Ranks) -> None:
        super().__init__(trainer, ranks)
        # Names of the blocks in the order of their calls in this step.
        self._calls: list[str] = []
        for name, block in self.model.named_modules():
            if isinstance(block, FSDPModule):
                note = functools.partial(_note_call, self._calls, name)
                block.register_forward_pre_hook(note)  # type: ignore[attr-defined]  # it is a module, too
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
        self.scope = ForwardScope(split)
        fully_shard(self.scope, mesh=mesh)
        return self.scope

    def _called(self, compute: Callable[[], Tensor], share: Share, name: str) -> Tensor:
        self.wrappers[name].set_requires_gradient_sync(share.is_last)  # type: ignore[operator]  # of FSDPModule
        return self.wrappers[name](compute)

    def _waiting_layers(self) -> list[nn.Module]:
        return [module for module in self.model.modules() if isinstance(module, FSDPModule) or module is self.model]

    def _nothing_of(self, loss: Tensor, name: str) -> Tensor:
        # Ranks exchange gradients in the order in which those of the blocks' outputs arrive.
        zeros = [(part * 0).sum().float() for part in tensors_of(self._outputs) if part.requires_grad]
        self._outputs.clear()
        return torch.stack(zeros).sum()

    def _check_exchange(self, name: str) -> None:
        """Reject a step in which ranks called different blocks: shares of different parameters were joined then."""
        calls = self._calls.copy()
        self._calls.clear()
        if self._ranks.have_same(hashlib.sha256("\n".join(calls).encode()).digest()):
            return
        of_ranks = [set(each) for each in self._ranks.gather(calls)]
        differing = sorted({name for each in of_ranks for name in each ^ of_ranks[0]}) or calls
        raise ConfigError(
            f"distributed.shard: in step {self._trainer.place.step + 1}, ranks used different parts of the model "
            f"({abbreviated(differing, 3)}), or in another order, which cannot be split; set distributed.shard=False "
            "and distributed.find_unused_parameters=True"
        )

    @torch.no_grad()
    def settle(self) -> None:
        trained = dict(self.model.named_parameters())
        for name, parameter in self._whole.named_parameters():
            parameter.copy_(_whole_of(trained[name]))
        buffers = dict(self.model.named_buffers())
        for name, buffer in self._whole.named_buffers():
            buffer.copy_(buffers[name])
        super().settle()


def _note_call(calls: list[str], name: str, *call: Any) -> None:
    if torch.is_grad_enabled():
        calls.append(name)


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
