"""Batch normalisation with the statistics of all ranks: torch's SyncBatchNorm on GPUs, its equivalent on the CPU.

Ranks may have shares of different sizes. Parameters, buffers and their names stay the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from sacristan.ingredients.models.freezing import is_held_in_eval

__all__ = ["SyncedBatchNorm", "sync_batch_norms"]


def sync_batch_norms(module: nn.Module) -> nn.Module:
    """Synchronise the batch normalisation of a module over all ranks, except frozen layers.

    Layers are replaced in place and keep their parameters and buffers. Returns the module, or its replacement if it is
    a normalisation layer itself.
    """
    if isinstance(module, _BatchNorm):
        if is_held_in_eval(module):
            return module
        is_on_gpu = any(tensor.is_cuda for tensor in (*module.parameters(), *module.buffers()))
        return nn.SyncBatchNorm.convert_sync_batchnorm(module) if is_on_gpu else SyncedBatchNorm(module)
    for name, child in module.named_children():
        synced = sync_batch_norms(child)
        if synced is not child:
            setattr(module, name, synced)
    return module


class SyncedBatchNorm(_BatchNorm):
    """Batch normalisation over the shares of all ranks: (B, C, ...) each, of any size."""

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
        self._parameters, self._buffers = norm._parameters, norm._buffers
        self.train(norm.training)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"expected at least 2 dimensions (batch, channels, ...), got {input.ndim}")

    def forward(self, input: Tensor) -> Tensor:
        """Normalise this rank's share (B, C, ...); the variance is computed after the mean, which is more exact."""
        self._check_input_dim(input)
        if not self.training and self.running_mean is not None:
            affine = self.weight, self.bias
            return functional.batch_norm(input, self.running_mean, self.running_var, *affine, False, 0.0, self.eps)
        others = [0, *range(2, input.ndim)]
        shape = (1, -1, *(1 for _ in range(2, input.ndim)))
        precise = input.float()
        count = precise.new_tensor([precise.numel() / precise.shape[1]])
        total = _total(torch.cat([precise.sum(others), count]))
        mean, count = total[:-1] / total[-1], total[-1].detach()
        centred = precise - mean.view(shape)
        variance = _total(centred.square().sum(others)) / count
        if self.training and self.running_mean is not None:
            self._follow(mean.detach(), variance.detach() * count / (count - 1))
        outputs = centred * (variance + self.eps).rsqrt().view(shape)
        if self.weight is not None:
            outputs = outputs * self.weight.view(shape) + self.bias.view(shape)
        return outputs.to(input.dtype)

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor) -> None:
        """Update the running statistics as torch does, with unbiased variances."""
        if self.num_batches_tracked is None or self.running_mean is None or self.running_var is None:
            return
        self.num_batches_tracked.add_(1)
        share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance, share)


class _Total(torch.autograd.Function):
    """The sum of a tensor over ranks; its gradient is the sum of the gradients on all ranks."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        torch.distributed.all_reduce(total)
        return total


def _total(values: Tensor) -> Tensor:
    return _Total.apply(values)
