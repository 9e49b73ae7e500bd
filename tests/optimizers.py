"""Optimizers for tests that the lab does not have."""

from __future__ import annotations

import torch

__all__ = ["SAM", "Lookahead", "ScheduleFreeSGD"]


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


class SAM(torch.optim.Optimizer):
    """Lets another optimizer step by the gradients where the loss is greatest near by.

    As in most repositories, its `state_dict` leaves the momenta of that optimizer out. With `shares`, both have one
    state. Source: https://arxiv.org/abs/2010.01412
    """

    def __init__(self, params, lr=0.1, rho=0.05, base=torch.optim.AdamW, shares=False, **options):
        super().__init__(params, {"lr": lr, "rho": rho, **options})
        self.base_optimizer = base(self.param_groups, lr=lr, **options)
        self.param_groups = self.base_optimizer.param_groups
        if shares:
            self.state = self.base_optimizer.state

    @torch.no_grad()
    def first_step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                self.state[weight]["before"] = weight.clone()
                weight.add_(weight.grad / (weight.grad.norm() + 1e-12), alpha=group["rho"])
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                weight.copy_(self.state[weight].pop("before"))
        self.base_optimizer.step()

    def step(self, closure=None):
        self.first_step()
        with torch.enable_grad():
            closure()
        self.second_step()


class Lookahead(torch.optim.AdamW):
    """Returns every second step to halfway from slow weights, which it does not save; https://arxiv.org/abs/1907.08610."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, lr)
        self.slow = [[weight.detach().clone() for weight in group["params"]] for group in self.param_groups]
        self.count = 0

    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        self.count += 1
        for group, slow in zip(self.param_groups, self.slow, strict=True) if self.count % 2 == 0 else ():
            for weight, kept in zip(group["params"], slow, strict=True):
                weight.copy_(kept.lerp_(weight, 0.5))
