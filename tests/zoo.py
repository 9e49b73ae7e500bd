"""Tasks that take their own steps, have several optimizers or parameters, or whose optimizer recomputes its loss.

Each makes its model and optimizers by `parts`. `test_zoo.py` writes their loops by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sacristan.experiments import Task, Trainer

__all__ = [
    "ActorCritic",
    "Adversarial",
    "Muon",
    "Orthogonal",
    "Policy",
    "Refined",
    "Sam",
    "Sharp",
    "Uncertain",
    "descent",
    "make_model",
    "objectives",
    "penalty",
]


def make_model(norm: nn.Module | None = None, num_outputs: int = 3, num_inputs: int = 4) -> nn.Sequential:
    """Return a small model, with its first weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(num_inputs, 8), norm or nn.Identity(), nn.Tanh(), nn.Linear(8, num_outputs))


def descent(*modules: nn.Module) -> torch.optim.SGD:
    """Return the optimizer of some modules."""
    return torch.optim.SGD([each for module in modules for each in module.parameters()], lr=0.1, momentum=0.5)


def penalty(critic: nn.Module, images: Tensor) -> Tensor:
    """Return the mean gradient penalty of a critic."""
    images = images.detach().requires_grad_()
    (slope,) = torch.autograd.grad(critic(images).sum(), images, create_graph=True)
    return (slope.norm(dim=1) - 1).square().mean()


class Adversarial(Task):
    """A generator of two columns from two others, and a critic that is trained twice a step."""

    def parts(self) -> tuple[nn.Module, Any]:
        model = nn.ModuleDict({"generator": make_model(None, 2, 2), "critic": make_model(None, 1)})
        return model, {name: descent(part) for name, part in model.items()}

    def made(self, model: Any, batch: Any) -> tuple[Tensor, Tensor]:
        """Return real and generated images."""
        inputs = batch[0]
        return inputs, torch.cat([inputs[:, :2], model["generator"](inputs[:, :2])], 1)

    def step(self, trainer: Trainer, group: Any) -> Any:
        model: Any = trainer.model

        def of_critic(batch: Any) -> dict[str, Tensor]:
            real, fake = self.made(model, batch)
            slope = penalty(model["critic"], fake)
            gap = model["critic"](fake.detach()).mean() - model["critic"](real).mean()
            return {"loss": gap + slope, "slope": slope}

        for _ in range(2):
            judged = trainer.minimize(of_critic, group, "critic")
        made = trainer.minimize(lambda batch: -model["critic"](self.made(model, batch)[1]).mean(), group, "generator")
        with torch.no_grad():  # a value of this rank's samples alone
            size = torch.cat([self.made(model, batch)[1].square().mean(1) for batch in group]).mean()
        return {"loss": made, "critic_loss": judged, "size": size}

    def measure(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        real, fake = self.made(model, batch)
        return {"loss": (real - fake).square().mean()}


class ActorCritic(Task):
    """An actor and a critic on its features, whose losses share a forward pass."""

    def parts(self) -> tuple[nn.Module, Any]:
        model = nn.ModuleDict({"actor": make_model(), "critic": nn.Linear(8, 1)})
        return model, {name: descent(part) for name, part in model.items()}

    def losses(self, model: Any, batch: Any) -> dict[str, Tensor]:
        inputs, actions = batch
        features = model["actor"][:-1](inputs)
        values = model["critic"](features)[:, 0]
        chosen = model["actor"][-1](features).log_softmax(1).gather(1, actions[:, None])[:, 0]
        return {
            "actor": -(chosen * (inputs[:, 0] - values.detach())).mean(),
            "critic": (values - inputs[:, 0]).square().mean(),
        }

    def step(self, trainer: Trainer, group: Any) -> Any:
        losses = trainer.minimize_each(lambda batch: self.losses(trainer.model, batch), group)
        return {"loss": losses["actor"], "value_loss": losses["critic"]}

    def measure(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        losses = self.losses(model, batch)
        return {"loss": losses["actor"], "value_loss": losses["critic"]}


class Policy(Task):
    """Two steps of a clipped policy gradient on the samples that are worth it, often none of a rank."""

    def parts(self) -> tuple[nn.Module, Any]:
        model = make_model()
        return model, descent(model)

    @torch.no_grad()
    def rolled_out(self, model: nn.Module, batch: Any) -> tuple[Tensor, ...]:
        inputs, actions = (part[batch[0][:, 2] > 0.2] for part in batch)
        return inputs, actions, inputs[:, 1], model(inputs).log_softmax(1)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, actions, rewards, before = batch
        ratios = (model(inputs).log_softmax(1) - before).exp().gather(1, actions[:, None])[:, 0]
        return -torch.minimum(ratios * rewards, ratios.clamp(0.9, 1.1) * rewards).mean()

    def step(self, trainer: Trainer, group: Any) -> Any:
        chosen = [self.rolled_out(trainer.model, batch) for batch in group]
        for _ in range(2):
            loss = trainer.minimize(lambda batch: self.loss(trainer.model, batch), chosen)
        return {"loss": loss, "reward": torch.cat([inputs for inputs, _ in group])[:, 1].mean()}

    def measure(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"loss": functional.cross_entropy(model(batch[0]), batch[1])}


class Orthogonal(torch.optim.Optimizer):
    """Steps of matrices with singular values near 1, as Muon's, in float32."""

    def __init__(self, params: Any, lr: float = 0.02) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                step = parameter.grad / parameter.grad.norm()
                for _ in range(3):
                    step = 1.5 * step - 0.5 * step @ step.T @ step
                parameter.sub_(step, alpha=group["lr"])


class Muon(Task):
    """One loss, with an optimizer for matrices, and one for the other parameters."""

    def parts(self) -> tuple[nn.Module, Any]:
        model = make_model()
        matrices = Orthogonal([each for each in model.parameters() if each.ndim == 2])
        return model, {"muon": matrices, "adamw": torch.optim.AdamW([p for p in model.parameters() if p.ndim < 2])}

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1])

    def step(self, trainer: Trainer, group: Any) -> Any:
        both = ("muon", "adamw")
        return trainer.minimize_each(lambda batch: dict.fromkeys(both, self.loss(trainer.model, batch)), group)["muon"]


class Sam(torch.optim.Optimizer):
    """Sharpness-aware steps, as https://github.com/davda54/sam writes them."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1, "rho": 0.05})

    @torch.no_grad()
    def first_step(self) -> None:
        (group,) = self.param_groups
        norm = torch.stack([each.grad.norm() for each in group["params"]]).norm()
        for each in group["params"]:
            self.state[each]["old"] = each.clone()
            each.add_(each.grad * (group["rho"] / (norm + 1e-12)))

    @torch.no_grad()
    def second_step(self) -> None:
        (group,) = self.param_groups
        for each in group["params"]:
            each.copy_(self.state[each]["old"]).sub_(each.grad, alpha=group["lr"])

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> None:
        assert closure is not None
        self.first_step()
        torch.enable_grad()(closure)()
        self.second_step()


def objectives(model: nn.Module, batch: Any) -> Tensor:
    """Return two losses of a batch."""
    outputs = model(batch[0])
    return torch.stack([functional.cross_entropy(outputs, batch[1]), outputs.square().mean()])


class Sharp(Task):
    """An ordinary loss, with an optimizer that recomputes it."""

    def parts(self) -> tuple[nn.Module, Any]:
        model = make_model()
        return model, Sam(model.parameters())

    def loss(self, model: nn.Module, batch: Any) -> Any:
        scores = model(batch[0])
        return {"loss": functional.cross_entropy(scores, batch[1]), "size": scores.square().mean()}


class Refined(Sharp):
    """The same, with one that decides by the loss how far to go."""

    def parts(self) -> tuple[nn.Module, Any]:
        model = make_model()
        return model, torch.optim.LBFGS(model.parameters(), lr=0.2, max_iter=2, line_search_fn="strong_wolfe")

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return objectives(model, batch).sum()


class Uncertain(Task):
    """Two losses, weighted by trained uncertainties: https://arxiv.org/abs/1705.07115."""

    def __init__(self) -> None:
        self.module = nn.Linear(1, 2, bias=False)
        nn.init.zeros_(self.module.weight)

    def parts(self) -> tuple[nn.Module, Any]:
        model = make_model()
        return model, descent(model, self.module)

    def loss(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        first, second = losses = objectives(model, batch)
        logarithms = self.module.weight[:, 0]
        return {"loss": (losses * (-logarithms).exp() + logarithms).sum(), "first": first, "second": second}
