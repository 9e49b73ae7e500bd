"""Small trainings of many kinds, by one process or by some ranks: `train` returns what each came to.

As a script each rank trains them all, and rank 0 writes what came of it to the file that is named. With `further`, the
ranks resume what others have left beside that file, for one more epoch. With `sessions` they train one case alone, at
once and in two sessions.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sacristan.experiments import Callback, Supervised, Task, evaluate, fit, predict
from sacristan.ingredients import Checkpointer, Data, LabError, Loss, MixedPrecision, TensorBatches
from sacristan.ingredients.ranks.group import current
from tests import zoo
from tests.zoo import make_model

__all__ = ["CASES", "ZOO", "train", "train_further", "train_in_two_sessions"]

_GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(47, 4, generator=_GENERATOR)
LABELS = (INPUTS[:, 0] > 0).long() + (INPUTS[:, 1] > 0).long()
# A whole batch of rank 1 has no target that counts.
SPARSE = torch.where(torch.arange(47) % 8 < 4, LABELS, 0)
VALUES = INPUTS[:, :2] * 2 + 1


class Own(Task):
    """A task of one's own, whose batches weigh what their labels add up to."""

    def loss(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        inputs, targets = batch
        wrong = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
        return {
            "loss": (wrong * targets).sum() / targets.sum().clamp(min=1),
            "labels": (targets * targets).sum() / targets.sum().clamp(min=1),
        }

    def weight(self, batch: Any) -> Tensor:
        return batch[1].sum()


class Masked(Own):
    """The same, whose mean is one over nothing where no label counts: whole shares of rank 1."""

    def loss(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        inputs, targets = batch
        wrong = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
        return {"loss": (wrong * targets).sum() / targets.sum(), "labels": (targets * targets).sum() / targets.sum()}


class OfParts(Own):
    """The same, which calls parts of the model, and finds them behind a wrapper or not."""

    def loss(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        inputs, targets = batch
        layers = getattr(model, "module", model)
        wrong = nn.functional.cross_entropy(layers[-1](layers[:-1](inputs)), targets, reduction="none")
        return {"loss": (wrong * targets).sum() / targets.sum(), "labels": (targets * targets).sum() / targets.sum()}


class Unused(Task):
    """Leaves the last layer out."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return model[:-1](batch[0]).square().mean()


class Experts(nn.Module):
    """A mixture of experts that sends each sample to one of them; few samples of a rank reach all."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(4, 6)
        self.experts = nn.ModuleList(nn.Linear(4, 3) for _ in range(6))

    def forward(self, inputs: Tensor) -> Tensor:
        shares = self.router(inputs).softmax(1)
        outputs = inputs.new_zeros(len(inputs), 3)
        for number, expert in enumerate(self.experts):
            rows = (shares.argmax(1) == number).nonzero().flatten()
            if len(rows):
                outputs = outputs.index_add(0, rows, expert(inputs[rows]) * shares[rows, number, None])
        return outputs


class OwnExpert(Task):
    """Uses another expert on each rank."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return model.experts[current().rank](batch[0]).square().mean()  # type: ignore[index, union-attr]


class Drifting(Task):
    """Changes a weight on rank 1 alone, by one bit."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        if current().rank == 1 and torch.is_grad_enabled():
            with torch.no_grad():
                bias = model[-1].bias[:1]
                bias.copy_(torch.nextafter(bias, bias + 1))
        return model(batch[0]).square().mean()


class DriftingModule(Task):
    """Changes a parameter of its own on rank 1 alone."""

    def __init__(self) -> None:
        self.module = nn.Linear(3, 1, bias=False)

    def parts(self) -> tuple[nn.Module, Any]:
        model = make_model()
        return model, zoo.descent(model, self.module)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        if current().rank == 1 and torch.is_grad_enabled():
            nn.init.zeros_(self.module.weight)
        return self.module(model(batch[0])).square().mean()


class Nothing(Task):
    """Takes a step on nothing on rank 1 alone."""

    def step(self, trainer: Any, group: Any) -> Tensor | None:
        return trainer.minimize(lambda batch: trainer.model(batch[0]).mean(), group[current().rank :])

    def measure(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {}


class NamedApart(Task):
    """Gives a value a name of each rank."""

    def loss(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        loss = model(batch[0]).square().mean()
        return {"loss": loss, f"rank_{current().rank}": loss}


class Summed(Task):
    """A task of one's own whose loss adds up samples, and so does one of the scalars beside it."""

    reduction: ClassVar = {"loss": "sum", "hits": "sum"}

    def loss(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        inputs, targets = batch
        scores = model(inputs)
        right = scores.argmax(1) == targets
        return {
            "loss": nn.functional.cross_entropy(scores, targets, reduction="sum"),
            "right": right.float().mean(),
            "hits": right.sum(),
        }


class SummedAsBefore(Task):
    """A task for earlier versions, whose loss adds up samples."""

    is_sum = True

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")


class SummedByLabel(Summed):
    """The same, whose means are over what the labels add up to."""

    reduction = "sum"

    def loss(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        inputs, targets = batch
        wrong = nn.functional.cross_entropy(model(inputs), targets, reduction="none") * targets
        return {"loss": wrong.sum(), "labels": (targets * targets).sum() / targets.sum().clamp(min=1)}

    def weight(self, batch: Any) -> int:
        return int(batch[1].sum())


class Penalised(Supervised):
    """The loss of a `Loss`, and one more term."""

    def loss(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        size = model(batch[0]).square().mean()
        return {"loss": super().loss(model, batch) + size, "size": size}


class Beside(Supervised):
    """The loss of a `Loss`, and a mean beside it."""

    def loss(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        right = model(batch[0]).argmax(1) == batch[1]
        return {"loss": super().loss(model, batch), "right": right.float().mean()}


class Measured(Supervised):
    """The loss of a `Loss`, and a metric of one's own."""

    def measure(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"sure": model(batch[0]).softmax(1).amax(1).mean()}


class Weighted(Supervised):
    """A loss weighted by label, and the weight of a batch as an int."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        inputs, targets = batch
        wrong = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
        return (wrong * (1 + 9 * targets)).sum() / (1 + 9 * targets).sum()

    def weight(self, batch: Any) -> int:
        return int((1 + 9 * batch[1]).sum())


class Exchanges(Callback):
    """Counts how often gradients are exchanged, and how many numbers the optimizer of a rank holds."""

    def __init__(self) -> None:
        self.count = self.held = 0

    def start(self, trainer: Any) -> None:
        if trainer.steps_itself:
            return
        trained = trainer.optimizers[""].param_groups[0]["params"]
        self.held = sum(getattr(each, "to_local", each.detach)().numel() for each in trained)
        if trainer.ranked is not None and not current().options["shard"]:
            trainer.ranked.wrappers[""].register_comm_hook(self, _counted)


def _counted(callback, bucket):
    callback.count += 1
    group = torch.distributed.group.WORLD
    work = torch.distributed.all_reduce(bucket.buffer().div_(current().size), group=group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def _classes(**options: Any) -> Loss:
    return Loss(nn.CrossEntropyLoss(**options), "classes", 3)


CASES: dict[str, Any] = {
    "mean": (LABELS, _classes, 1),
    "accumulated": (LABELS, _classes, 3),
    "weighted": (LABELS, functools.partial(_classes, weight=torch.tensor([1.0, 4.0, 0.5])), 1),
    "ignored": (SPARSE, functools.partial(_classes, ignore_index=0), 2),
    "sum": (LABELS, functools.partial(_classes, reduction="sum"), 1),
    "sums accumulated": (LABELS, functools.partial(_classes, reduction="sum"), 3),
    "sums of one's own": (LABELS, Summed, 1),
    "sums of one's own accumulated": (LABELS, Summed, 2),
    "values": (VALUES, lambda: Loss(nn.MSELoss(), "values", 2), 1),
    "own": (LABELS, Own, 2),
    "own masked": (SPARSE, Masked, 1),
    "own masked, normalised": (SPARSE, Masked, 1),
    "own of parts": (LABELS, OfParts, 3),
    "own of parts masked": (SPARSE, OfParts, 1),
    "normalised": (LABELS, _classes, 2),
}
# Tasks that `test_zoo.py` trains by hand, with one micro-batch a step and three.
ZOO: dict[str, Any] = {
    f"{name}, accumulate {accumulate}": (LABELS, make, accumulate)
    for name, make in {
        "sum of its own": Summed,
        "sum as before": SummedAsBefore,
        "sum by label": SummedByLabel,
        "mean of its own": Own,
        "sum": functools.partial(_classes, reduction="sum"),
        "penalised": lambda: Penalised(_classes()),
        "sum and a mean beside": lambda: Beside(_classes(reduction="sum")),
        "measured": lambda: Measured(_classes()),
        "weighted": lambda: Weighted(_classes()),
        "adversarial": zoo.Adversarial,
        "actor and critic": zoo.ActorCritic,
        "policy": zoo.Policy,
        "two optimizers": zoo.Muon,
        "sharpness": zoo.Sharp,
        "line search": zoo.Refined,
        "uncertainty": zoo.Uncertain,
    }.items()
    for accumulate in (1, 3)
}
FAULTS: dict[str, Any] = {
    "unused": (LABELS, Unused, 1),
    "drifting": (LABELS, Drifting, 1),
    "drifting module": (LABELS, DriftingModule, 1),
    "nothing": (LABELS, Nothing, 1),
    "named apart": (LABELS, NamedApart, 1),
}
# Where parameters are split over ranks.
SPLIT_FAULTS: dict[str, Any] = {"own expert": (LABELS, OwnExpert, 1)}
# Cases with several optimizers that are resumed.
OWN_SESSIONS = ("noisy", "actor and critic, accumulate 3")


class Noisy(zoo.Adversarial):
    """The same with noise, statistics and momenta, which all are resumed."""

    def parts(self) -> tuple[nn.Module, Any]:
        model: Any = nn.ModuleDict({"generator": make_model(nn.BatchNorm1d(8), 2, 2), "critic": make_model(None, 1)})
        return model, {name: torch.optim.Adam(part.parameters(), 1e-2) for name, part in model.items()}

    def made(self, model: Any, batch: Any) -> tuple[Tensor, Tensor]:
        real, fake = super().made(model, batch)
        return real, fake + 0.1 * torch.randn(fake.shape)


def train(
    case: str, device: str = "cpu", epochs: int = 2, keeper: Checkpointer | None = None, batch_size: int = 0
) -> dict[str, Any]:
    """Train a case on a device; return its weights, points, metrics, predictions, and exchanges of gradients."""
    others = {"noisy": (LABELS, Noisy, 2), "experts": (LABELS, _classes, 2)}
    targets, make_loss, accumulate = (CASES | ZOO | FAULTS | SPLIT_FAULTS | others)[case]
    ranks = current()
    parts = {"train": slice(0, 30), "val": slice(30, 43), "test": slice(43, 47)}
    where = torch.device(device, ranks.rank) if device == "cuda" else torch.device(device)
    batch_size = batch_size or (6 if case == "normalised" else 8)  # three ranks resume that
    batches = {}
    for name, rows in parts.items():
        options: dict[str, Any] = {"ranks": ranks}
        if name == "train":
            options |= {"shuffle": True, "least": ranks.size}
        batches[name] = TensorBatches(INPUTS[rows].to(where), targets[rows].to(where), batch_size, **options)
    kind = "regression" if case == "values" else "classification"
    num_outputs = 2 if case == "values" else 3
    data = Data(
        **batches,
        task=kind,
        input_shape=(4,),
        num_targets=num_outputs,
        classes=("a", "b", "c"),
        class_counts=(1, 1, 1),
        target_mean=None,
        target_std=None,
        fingerprint="f",
    )
    loss, exchanges, logged = make_loss(), Exchanges(), []
    if hasattr(loss, "parts"):
        model, optimizer = loss.parts()
    else:
        model = make_model(nn.BatchNorm1d(8) if "normalised" in case else nn.Identity(), num_outputs).to(where)
        model = Experts().to(where) if case in ("experts", "own expert") else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01 if "sum" in case else 0.1, momentum=0.5)
    amp = MixedPrecision(where, accumulate=accumulate, clip_norm=1.0 if case == "normalised" else None)
    callbacks = [exchanges]
    log = functools.partial(_note, logged)
    how: dict[str, Any] = {"amp": amp, "log": log, "checkpointer": keeper}
    result = fit(model, data, loss, optimizer, epochs=epochs, log_interval=2, callbacks=callbacks, **how)
    modules = loss.modules(model) if isinstance(loss, Task) else (model,)
    weights = [each.detach().flatten() for module in modules for each in module.parameters()]
    found: dict[str, Any] = {"weights": torch.cat(weights)}
    found["statistics"] = [each.detach().cpu().double() for each in model.buffers()]
    found |= {"logged": logged, "steps": result.steps, "exchanges": exchanges.count, "held": exchanges.held}
    found["test"] = evaluate(model, data.test, loss)
    if isinstance(loss, Loss) and case not in ZOO:
        found["predictions"] = predict(model, data.test, loss)["predictions"].tolist()
    return found


def train_in_two_sessions(case: str, folder: Path, **options: Any) -> dict[str, Any]:
    """Train a case for an epoch, and resume it from the state of that; return the same as `train`."""
    train(case, epochs=1, keeper=Checkpointer(folder, {}), **options)
    return train(case, keeper=Checkpointer(folder, {}, resume=True), **options)


def resumed_bits(folder: Path) -> dict[str, Any]:
    """Return the weights of cases with several optimizers, trained at once and in two sessions."""
    return {
        case: {
            "whole": train(case, batch_size=6)["weights"],
            "resumed": train_in_two_sessions(case, folder / case, batch_size=6)["weights"],
        }
        for case in OWN_SESSIONS
    }


def train_unused(case: str = "unused") -> Tensor:
    """Train a case with unused parameters that are found; return its weights."""
    current().options["find_unused_parameters"] = True
    try:
        return train(case)["weights"]
    finally:
        current().options["find_unused_parameters"] = False


def failed(faults: Mapping[str, Any]) -> dict[str, str]:
    """Return the message of each fault."""
    messages = {}
    for fault in faults:
        try:
            train(fault)
        except LabError as error:
            messages[fault] = f"{type(error).__name__}: {error}"
    return messages


def train_further(case: str, folder: Path) -> dict[str, Any]:
    """Resume two epochs of a case for a third one; return the same as `train`."""
    return train(case, epochs=3, keeper=Checkpointer(folder, {}, resume=True))


def _note(logged: list, name: str, value: float, step: int) -> None:
    logged.append((name, float(value), step))


if __name__ == "__main__":
    from sacristan.ingredients.ranks import Notices, world_of
    from sacristan.ingredients.ranks.group import join, leave

    path, device = Path(sys.argv[1]), "cuda" if "cuda" in sys.argv else "cpu"
    if device == "cuda":
        torch.cuda.set_device(world_of().local_rank)
    options = {
        "backend": "auto",
        "sync_batch_norm": True,
        "find_unused_parameters": False,
        "check_weights": True,
        "timeout_s": 60.0,
        "shard": False,
    }
    notices = Notices(world_of())
    ranks = join(notices, options)
    found: dict[str, Any] = {}
    if "sessions" in sys.argv:
        found["normalised"] = train("normalised")
        ranks.options["shard"] = True
        found["sharded"] = {"normalised": train("normalised")}
    elif "zoo" in sys.argv:
        found |= {case: train(case, device) for case in ZOO}
    elif "further" not in sys.argv:
        found |= {case: train(case, device) for case in CASES}
        found |= {"failed": failed(FAULTS), "unused": train_unused(), "experts": train_unused("experts")}
        ranks.options["shard"] = True
        found["sharded"] = {case: train(case, device) for case in CASES}
        found["failed"] |= failed(SPLIT_FAULTS)
    if "further" not in sys.argv and "zoo" not in sys.argv:
        ranks.options["shard"] = False
        found |= resumed_bits(path.with_name("own"))
    for shard in (False, True) if device == "cpu" and "zoo" not in sys.argv else ():
        ranks.options["shard"] = shard
        again = train_further if "further" in sys.argv else train_in_two_sessions
        found[f"resumed {shard}"] = again("normalised", path.with_name(f"checkpoints-{shard}"))
    if ranks.is_first:
        torch.save(found, path)
    ranks.agree(0)
    leave(well=True)
    notices.leave(well=True)
