"""Between logged values the loop waits for nothing of the device: on a GPU torch tells, here operations do."""

from __future__ import annotations

import contextlib
import traceback

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from sacristan.experiments import Callback, fit
from sacristan.ingredients import LoaderBatches, Loss, MixedPrecision
from sacristan.ingredients.models.tuned import tune
from sacristan.ingredients.optimizer import build_optimizer

CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))
aten = torch.ops.aten
# A process waits for what they return, or for how much that is.
WAITED_FOR = {aten._local_scalar_dense, aten.equal, aten.is_nonzero, aten.masked_select, aten.nonzero, aten.bincount}


# Numbers that are on the CPU on every machine: the loss of a training there, torch's own counts, the seed of a loader.
ON_CPU = ("losses.append(keep(", "n_averaged", "torch/utils/data/dataloader.py")
# What hands an operation over to a mode.
BETWEEN = ("torch/_compile.py", "torch/_dynamo/eval_frame.py")


class Waits(TorchDispatchMode):
    """Notes the operations that a process would wait for, with the line that asked for them."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        packet = func._overloadpacket
        by_mask = packet in (aten.index, aten.index_put_) and any(
            place is not None and place.dtype == torch.bool for place in args[1]
        )
        if packet in WAITED_FOR or by_mask:
            caller = [frame for frame in traceback.extract_stack()[:-1] if not frame.filename.endswith(BETWEEN)][-1]
            where = f"{caller.filename}:{caller.lineno}: {caller.line}"
            if not any(part in where for part in ON_CPU):
                self.seen.append(f"{func} at {where}")
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def waiting_for_nothing(device):
    """Raise where something waits for the device."""
    with Waits() as waits:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            if device == "cuda":
                torch.cuda.set_sync_debug_mode("default")
    assert waits.seen == []


class Watched(Callback):
    """Looks at the steps from the fourth to the last but one, which is logged."""

    observes = True

    def __init__(self, device, last):
        self.device, self.last, self.seen = device, last, 0
        self.looking = contextlib.ExitStack()

    def after_step(self, trainer):
        if trainer.place.step == 3:
            self.looking.enter_context(waiting_for_nothing(self.device))
        self.seen += 3 < trainer.place.step < self.last
        if trainer.place.step == self.last - 1:
            self.looking.close()

    def close(self):
        self.looking.close()


EACH = {
    "plain": {},
    "accumulate": {"amp": {"accumulate": 2}},
    "clip": {"amp": {"clip_norm": 1.0, "clip_value": 1.0}},
    "bfloat16": {"amp": {"dtype": "bfloat16"}},
    "ema": {"average": "ema"},
    "weights": {"loss": {"weight": torch.tensor([1.0, 2.0, 3.0]), "ignore_index": 0}},
    "fused": {"implementation": "fused"},
    "checkpointing": {"tuned": {"gradient_checkpointing": ["0"]}},
}


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("what", EACH)
def test_steps_between_logged_values_wait_for_nothing(tensor_data, what, device):
    settings = {"amp": {}, "loss": {}, "tuned": {}, "implementation": None, **EACH[what]}
    where = torch.device(device)
    inputs, targets = torch.randn(96, 4, device=device), torch.arange(96, device=device) % 3
    data = tensor_data((inputs, targets), (inputs[:8], targets[:8]), shuffle=True)
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), nn.Dropout(0.5), nn.Linear(8, 3)).to(where)
    tune(model, **settings["tuned"])
    loss = Loss(nn.CrossEntropyLoss(**settings["loss"]).to(where), "classes", 3)
    optimizer = build_optimizer(
        model, "SGD", 1e-3, options={"momentum": 0.9}, implementation=settings["implementation"]
    )
    watched = Watched(device, 6 if what == "accumulate" else 12)
    how = {"amp": MixedPrecision(where, **settings["amp"]), "average": settings.get("average")}
    log = [].append
    fit(model, data, loss, optimizer, log=lambda *point: log(point), epochs=1, callbacks=[watched], **how)
    assert watched.seen == watched.last - 4


class Images:
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.full((3, 4, 4), float(index[1])), index[1] % 2


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_batches_of_a_loader_come_through_page_locked_memory_without_waiting(device):
    batches = LoaderBatches(Images(), torch.device(device), 8, 0, True)
    list(batches.epoch(1))  # page-locked memory is taken once
    with waiting_for_nothing(device):
        found = [inputs for inputs, _ in batches.epoch(2)]
    assert {inputs.device.type for inputs in found} == {device}
    assert sorted(torch.cat(found)[:, 0, 0, 0].tolist()) == list(range(20))


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("implementation", ["foreach", "fused"])
def test_implementations_of_an_optimizer_come_to_the_same_weights(device, implementation):
    def trained(implementation):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(device)
        optimizer = build_optimizer(model, "AdamW", 1e-2, implementation=implementation)
        for _ in range(5):
            model(torch.ones(4, 4, device=device)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return torch.cat([each.detach().flatten() for each in model.parameters()])

    torch.testing.assert_close(trained(implementation), trained("for_loop"))
