"""Loggers and callbacks of `sacristan.integrations`, with the real libraries and tiny random models."""

from __future__ import annotations

import copy
import decimal
import importlib
import pickle
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import sacristan
from sacristan.experiments.scripts import tracking
from sacristan.runs import open_store

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("SACRISTAN_STORE", "SACRISTAN_MODE", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    yield
    while tracking.current_run() is not None:
        tracking.current_run().finish()
    if state := sys.modules.get("accelerate.state"):
        state.AcceleratorState._reset_state(True)


def recorded():
    return open_store("my_runs").get(1)


def curve(run, name):
    return run.metric(name).steps.tolist(), run.metric(name).values.tolist()


def test_tracker_of_accelerate():
    accelerate = pytest.importorskip("accelerate")
    from sacristan.integrations.accelerate import SacristanTracker

    accelerator = accelerate.Accelerator(cpu=True, log_with=SacristanTracker("digits", tags=["tiny"]))
    accelerator.init_trackers("digits", config={"lr": 0.1})
    for step in range(3):
        accelerator.log({"train/loss": 1.0 / (step + 1)}, step=step)
    accelerator.end_training()
    found = recorded()
    assert (found.status, found.display_name, found.tags) == ("COMPLETED", "digits", ["tiny"])
    assert (dict(found.config), curve(found, "train/loss")) == ({"lr": 0.1}, ([0, 1, 2], [1.0, 0.5, 1.0 / 3]))


def test_logger_of_ignite():
    engine = pytest.importorskip("ignite.engine")
    from sacristan.integrations.ignite import SacristanLogger

    optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), 0.5)
    trainer = engine.Engine(lambda _, batch: float(batch))
    logger = SacristanLogger(name="digits", config={"lr": 0.5})
    logger.attach_output_handler(
        trainer,
        event_name=engine.Events.ITERATION_COMPLETED,
        tag="training",
        output_transform=lambda loss: {"loss": loss},
    )
    logger.attach_opt_params_handler(trainer, event_name=engine.Events.ITERATION_STARTED, optimizer=optimizer)
    trainer.run([3.0, 2.0], max_epochs=2)
    logger.close()
    found = recorded()
    assert (found.status, dict(found.config)) == ("COMPLETED", {"lr": 0.5})
    assert curve(found, "training/loss") == ([1, 2, 3, 4], [3.0, 2.0, 3.0, 2.0])
    assert curve(found, "lr/group_0") == ([1, 2, 3, 4], [0.5] * 4)


@pytest.fixture
def net():
    """Return a function that makes a tiny net of skorch with a callback."""
    skorch = pytest.importorskip("skorch")

    def make(callback):
        return skorch.NeuralNetRegressor(
            torch.nn.Linear, module__in_features=2, module__out_features=1, max_epochs=3, lr=0.1, train_split=None,
            callbacks=[callback], verbose=0,
        )  # fmt: skip

    return make


def test_callback_of_skorch(net):
    from sacristan.integrations.skorch import SacristanLogger

    run = sacristan.init(name="digits")
    fitted = net(SacristanLogger(run)).fit(torch.randn(8, 2), torch.randn(8, 1))
    run.finish()
    found = recorded()
    assert curve(found, "train_loss") == ([1, 2, 3], fitted.history[:, "train_loss"])
    assert (found.config["lr"], found.config["max_epochs"]) == (0.1, 3)


def test_callback_of_skorch_is_cloned_copied_and_pickled(net):
    sklearn = pytest.importorskip("sklearn.base")
    from sacristan.integrations.skorch import SacristanLogger

    fitted = sklearn.clone(net(SacristanLogger(name="digits", close_after_train=True)))
    fitted.fit(torch.randn(8, 2), torch.randn(8, 1))
    found = recorded()
    assert (found.status, found.display_name) == ("COMPLETED", "digits")
    assert curve(found, "train_loss") == ([1, 2, 3], fitted.history[:, "train_loss"])
    for copied in (copy.deepcopy(fitted), pickle.loads(pickle.dumps(fitted))):
        copied.partial_fit(torch.randn(8, 2), torch.randn(8, 1))
    assert [run.display_name for run in open_store("my_runs").find()] == ["digits"] * 3


@pytest.mark.slow
def test_callback_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    from sacristan.integrations.transformers import SacristanCallback

    settings = transformers.GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    data = [{"input_ids": torch.arange(4), "labels": torch.arange(4)} for _ in range(4)]
    arguments = transformers.TrainingArguments(
        str(tmp_path / "out"), max_steps=4, per_device_train_batch_size=1, logging_steps=2, eval_strategy="steps",
        eval_steps=2, save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True, learning_rate=0.01,
        dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = transformers.Trainer(
        transformers.GPT2LMHeadModel(settings), arguments, train_dataset=data, eval_dataset=data,
        callbacks=[SacristanCallback(name="digits")],
    )  # fmt: skip
    trainer.train()
    sacristan.finish()
    found, history = recorded(), trainer.state.log_history
    assert (found.status, found.display_name) == ("COMPLETED", "digits")
    assert (found.config["learning_rate"], found.config["model"]["n_embd"]) == (0.01, 8)
    losses = (
        [row["loss"] for row in history if "loss" in row],
        [row["eval_loss"] for row in history if "eval_loss" in row],
    )
    assert curve(found, "train/loss") == ([2, 4], losses[0])
    assert curve(found, "eval/loss") == ([2, 4], losses[1])


def test_images_of_accelerate():
    accelerate = pytest.importorskip("accelerate")
    from sacristan.integrations.accelerate import SacristanTracker

    accelerator = accelerate.Accelerator(cpu=True, log_with=SacristanTracker("digits"))
    accelerator.init_trackers("digits")
    for tracker in accelerator.trackers:
        tracker.log_images({"samples": torch.zeros(2, 4, 4, 3)}, step=1)
    accelerator.end_training()
    assert [medium.step for medium in recorded().media] == [1, 1]


class Unprintable:
    def __float__(self):
        raise RuntimeError

    __repr__ = __float__


# Values that are no numbers, or odd ones, by what is recorded of them: the number, None for a text or nothing.
ODD = {
    "text": ("fine", None), "none": (None, None), "dict": ({"inner": {"value": 2}}, None), "flag": (True, 1.0),
    "decimal": (decimal.Decimal("0.5"), 0.5), "infinite": (float("inf"), float("inf")), "huge": (10**400, None),
    "gradient": (torch.tensor(3.0, requires_grad=True), 3.0), "scalar": (np.array(4.0), 4.0), "one": (np.ones(1), 1.0),
    "pair": (np.arange(2), None), "meta": (torch.ones((), device="meta"), None), "complex": (1j, None),
    "object": (Unprintable(), None), "list": ([1, "a"], None), "": (1.0, None),
}  # fmt: skip


def log_by(library, values):
    """Log values at step 1 by the logger of a library, as it calls that."""
    module = importlib.import_module(f"sacristan.integrations.{library}")
    if library == "accelerate":
        importlib.import_module("accelerate").PartialState(cpu=True)
        tracker = module.SacristanTracker("digits")
        tracker.store_init_configuration(values)
        tracker.log(values, step=1)
        tracker.log_images({"odd": [np.zeros((2, 2, 2, 2))], "none": None})
    elif library == "ignite":
        module.SacristanLogger(name="digits", config=values).log(values, 1)
    elif library == "lightning":
        logger = module.SacristanLogger(name="digits")
        logger.log_hyperparams(None)
        logger.log_hyperparams(values)
        logger.log_metrics(values, 1)
    elif library == "skorch":
        logger = module.SacristanLogger(name="digits").initialize()
        logger.on_epoch_end(SimpleNamespace(history=[{**values, "epoch": 1}]))
    else:
        state = SimpleNamespace(is_world_process_zero=True, global_step=1)
        module.SacristanCallback(name="digits").on_log(None, state, None, logs=values)


@pytest.mark.filterwarnings("ignore")  # libraries warn of their environment
@pytest.mark.parametrize(
    "library",
    [
        "accelerate",
        "ignite",
        "skorch",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("lightning", "transformers")),
    ],
)
def test_no_value_that_is_logged_ends_a_training(library):
    pytest.importorskip(library)
    log_by(library, {name: value for name, (value, _) in ODD.items()})
    sacristan.finish()
    found = recorded()
    prefix = "train/" if library == "transformers" else ""
    expected = {name: ([1], [number]) for name, (_, number) in ODD.items() if number is not None}
    assert {name: curve(found, prefix + name) for name in expected} == expected
    assert found.status == "COMPLETED"


@pytest.mark.parametrize("library", ["accelerate", "ignite", "skorch", "transformers"])
def test_modules_export_what_they_document(library):
    pytest.importorskip(library)
    module = importlib.import_module(f"sacristan.integrations.{library}")
    assert module.__doc__
    assert all(getattr(module, name).__doc__ for name in module.__all__)


def test_package_loads_no_library():
    script = "import sys, sacristan.integrations, sacristan.integrations.runs\n"
    script += "print({'torch', 'accelerate', 'ignite', 'skorch', 'lightning', 'transformers'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_nothing_is_recorded_in_a_disabled_run(net, monkeypatch):
    from sacristan.integrations.skorch import SacristanLogger

    monkeypatch.setenv("SACRISTAN_MODE", "disabled")
    net(SacristanLogger()).fit(torch.randn(8, 2), torch.randn(8, 1))
    assert sacristan.run.disabled


def test_callback_logs_into_the_run_of_an_experiment(net):
    from sacristan.integrations.skorch import SacristanLogger

    ex = sacristan.Experiment("mine", interactive=True)
    ex.observers.append(sacristan.FileObserver("my_runs"))

    @ex.main
    def main(_run):
        net(SacristanLogger(_run)).fit(torch.randn(8, 2), torch.randn(8, 1))

    ex.run()
    found = recorded()
    assert (found.status, found.metric("train_loss").steps.tolist()) == ("COMPLETED", [1, 2, 3])
    assert found.info["hyperparameters"]["max_epochs"] == 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Lightning warns of its environment, and of torch
def test_logger_of_lightning_without_an_experiment():
    lightning = pytest.importorskip("lightning")
    from sacristan.integrations.lightning import SacristanLogger

    class Net(lightning.LightningModule):
        def __init__(self, lr=0.1):
            super().__init__()
            self.save_hyperparameters()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch, index):
            loss = self.layer(batch[0]).square().mean()
            self.log("train/loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), self.hparams.lr)

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 2)), 2)
    logger = SacristanLogger(name="digits")
    trainer = lightning.Trainer(
        max_epochs=1, logger=logger, log_every_n_steps=1, accelerator="cpu", enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Net(), loader)
    assert logger.experiment is sacristan.run
    sacristan.finish()
    found = recorded()
    assert (found.status, found.display_name, dict(found.config)) == ("COMPLETED", "digits", {"lr": 0.1})
    assert found.metric("train/loss").steps.tolist() == [0, 1, 2, 3]
    assert list(found.info["checkpoints"]) == ["best"]
