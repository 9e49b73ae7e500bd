"""Optimizers for tests that the lab does not have."""

from __future__ import annotations

import torch

__all__ = ["ScheduleFreeSGD"]


class ScheduleFreeSGD(torch.optim.Optimizer):
    """Trains y, evaluates x, and keeps z; Defazio et al., https://arxiv.org/abs/2405.15682."""

    def __init__(self, params, lr=0.1, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta, "k": 0, "train_mode": False})

    def train(self):
        self.switch(to_train=True)

    def eval(self):
        self.switch(to_train=False)

    @torch.no_grad()
    def switch(self, *, to_train):
        for group in self.param_groups:
            if group["train_mode"] != to_train:
                for weight in group["params"]:
                    if "z" in self.state[weight]:
                        weight.lerp_(self.state[weight]["z"], 1 - group["beta"] ** (1 if to_train else -1))
                group["train_mode"] = to_train

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            assert group["train_mode"], "Optimizer was not in train mode when step is called"
            group["k"] += 1
            for weight in group["params"]:
                z = self.state[weight].setdefault("z", weight.clone())
                share, beta = 1 / group["k"], group["beta"]
                weight.lerp_(z, share).add_(weight.grad, alpha=group["lr"] * (beta * (1 - share) - 1))
                z.sub_(weight.grad, alpha=group["lr"])
