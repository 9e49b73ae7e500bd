"""Modules of Lightning in runs of the lab. All in one process, because importing lightning takes seconds."""

from __future__ import annotations

import json
import signal
import sys
import textwrap
from collections import Counter
from types import SimpleNamespace

import pytest

from sacristan.experiments import Experiment, Terminated
from sacristan.ingredients import ConfigError
from sacristan.observers import file_observer, read_metrics

# Lightning's own warnings, and those of torch about what Lightning uses of it.
pytestmark = pytest.mark.filterwarnings("ignore")

CODE = """
import os, torch
from lightning import Callback, LightningDataModule, LightningModule
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Digits(LightningDataModule):
    def __init__(self, batch_size=64):
        super().__init__()
        digits = load_digits()
        inputs, targets = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
        self.parts = [TensorDataset(inputs[a:b], targets[a:b]) for a, b in ((0, 320), (320, 400), (400, 480))]
        self.batch_size = batch_size

    def train_dataloader(self):
        return DataLoader(self.parts[0], self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.parts[1], 80)

    def test_dataloader(self):
        return DataLoader(self.parts[2], 80)


class Net(LightningModule):
    def __init__(self, lr=1e-2, fails=False):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Linear(64, 10)

    def training_step(self, batch, index):
        if self.hparams.fails:
            raise RuntimeError("the code of a user fails")
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("val/loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def test_step(self, batch, index):
        self.log("test/accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.hparams.lr)


class Signal(Callback):
    "Sends a signal to this process in the middle of an epoch, once."

    def __init__(self, number, step=7):
        self.number, self.step = number, step

    def on_train_batch_start(self, trainer, *args):
        if trainer.global_step == self.step and not os.path.exists("sent"):
            open("sent", "w").close()
            os.kill(os.getpid(), self.number)
"""
QUIET = {"enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1}


@pytest.fixture(scope="module")
def lit():
    """The experiment, and what the tests use of Lightning."""
    lightning = pytest.importorskip("lightning", reason="needs the extra lightning")
    from sacristan.experiments import lightning as module

    return SimpleNamespace(lightning=lightning, ex=module.ex, module=module)


@pytest.fixture
def train(lit, tmp_path, monkeypatch):
    """Train by the experiment in a folder of its own, for two epochs of five steps, with further settings."""
    (tmp_path / "lit_code.py").write_text(textwrap.dedent(CODE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "lit_code", raising=False)

    def run(**settings):
        names = {"module.name": "lit_code:Net", "datamodule.name": "lit_code:Digits"}
        return lit.ex.run(config_updates={**names, "trainer": {**QUIET, "max_epochs": 2}, **settings})

    return run


def entry(tmp_path, number=1, name="run.json"):
    return json.loads((tmp_path / "my_runs" / str(number) / name).read_text())


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"module.name": None}, r"module\.name: got None; write module\.name="),
        ({"module.name": "lit_code:Digits"}, r"module\.name: got 'lit_code:Digits', which is no LightningModule"),
        ({"module.name": "lit_code:Nett"}, r"lit_code has no 'Nett'; did you mean 'Net'"),
        ({"module.name": "Net"}, r"module\.name: got 'Net', expected package\.module:Class"),
        ({"module.options.lrr": 1.0}, r"module\.options\.lrr: Net takes no option 'lrr'; did you mean 'lr'"),
        ({"datamodule.options.batchsize": 1}, r"did you mean 'batch_size'"),
        (
            {"trainer.max_epoch": 1},
            r"trainer\.max_epoch: Trainer takes no option 'max_epoch'; did you mean 'max_epochs'",
        ),
        ({"trainer.logger": False}, r"trainer\.logger: Trainer gets 'logger' from the lab already"),
        ({"checkpoint.options.moniter": "val/loss"}, r"checkpoint\.options\.moniter: .* did you mean 'monitor'"),
        ({"callbacks": ["lit_code:Signal"]}, r"callbacks\[0\]: got 'lit_code:Signal', expected \{name:"),
        ({"callbacks": [{"name": "lit_code:Signal"}]}, r"callbacks\[0\]\.options: Signal needs a value for 'number'"),
        ({"trainer": {"max_epochs": 1, "precision": "8-odd"}}, r"trainer: "),
    ],
)
def test_what_does_not_fit_is_refused_with_the_nearest_name(train, settings, message):
    with pytest.raises(ConfigError, match=message):
        train(**settings)


EARLY = {"name": "lightning.pytorch.callbacks:EarlyStopping", "options": {"monitor": "val/los"}}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("settings", "message", "is_refused"),
    [
        ({"checkpoint.options.monitor": "val/los"}, "^ModelCheckpoint: got monitor='val/los', .* mean val/loss", True),
        ({"callbacks": [EARLY]}, "^EarlyStopping: got monitor='val/los', .* mean val/loss", True),
        (
            {"checkpoint.options.monitor": "f1"},
            r"^checkpoint.options.monitor: got 'f1', .* there are: .*'val/loss'",
            False,
        ),
    ],
)
def test_monitor_that_the_module_does_not_log_is_refused(train, tmp_path, settings, message, is_refused):
    with pytest.raises(ConfigError, match=message):
        train(**settings)
    found = entry(tmp_path)
    assert (found["status"], found["meta"].get("refused", False)) == ("FAILED", is_refused)


def test_training_is_recorded_tested_and_repeatable(train, tmp_path):
    run = train(**{"checkpoint.options.monitor": "val/loss"})
    assert run.status == "COMPLETED"
    found = read_metrics(tmp_path / "my_runs" / "1")
    assert found["train/loss"].steps.tolist() == list(range(10))
    assert found["val/loss"].steps.tolist() == [4, 9]
    assert run.result == run.info["test"] == {"test/accuracy": found["test/accuracy"].values[-1]}
    info = entry(tmp_path, name="info.json")
    assert info["hyperparameters"] == {"lr": 0.01, "fails": False}
    assert info["checkpoints"]["last"] == "checkpoints/last.ckpt"
    assert info["checkpoints"]["score"] == pytest.approx(found["val/loss"].values.min())
    assert (tmp_path / "my_runs" / "1" / info["checkpoints"]["best"]).is_file()
    assert not (tmp_path / "lightning_logs").exists()

    again, other = train(), train(seed=1)
    assert again.result == run.result
    assert read_metrics(tmp_path / "my_runs" / "2")["train/loss"].values.tolist() == found["train/loss"].values.tolist()
    assert read_metrics(tmp_path / "my_runs" / "3")["train/loss"].values.tolist() != found["train/loss"].values.tolist()

    start = "my_runs/1/checkpoints/last.ckpt"
    train(resume=start, trainer={**QUIET, "max_epochs": 3})
    assert read_metrics(tmp_path / "my_runs" / "4")["train/loss"].steps.tolist() == [10, 11, 12, 13, 14]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_interrupts_the_run_which_resumes_from_the_saved_step(train, tmp_path, number):
    settings = {"callbacks": [{"name": "lit_code:Signal", "options": {"number": int(number)}}], "resume": "auto"}
    with pytest.raises(Terminated) as end:
        train(**settings)
    assert (end.value.signal, end.value.step, end.value.code) == (number.name, 8, 75)
    assert entry(tmp_path)["status"] == "INTERRUPTED"
    assert entry(tmp_path)["meta"]["interrupted_by"] == number.name

    resumed = train(**settings)
    assert resumed.status == "COMPLETED"
    assert entry(tmp_path)["status"] == "COMPLETED"
    steps = read_metrics(tmp_path / "my_runs" / "1")["train/loss"].steps.tolist()
    assert max(Counter(steps).values()) == 1
    assert steps[:7] == list(range(7))
    assert steps[-1] == 9


def test_error_in_the_module_fails_the_run(train, tmp_path):
    with pytest.raises(RuntimeError, match="the code of a user fails"):
        train(**{"module.options.fails": True})
    assert entry(tmp_path)["status"] == "FAILED"


def test_logger_in_a_script_of_ones_own_keeps_what_lies_elsewhere_as_artifacts(train, lit, tmp_path):
    import lit_code

    ex = Experiment("own", interactive=True)
    ex.observers.append(file_observer(tmp_path / "my_runs"))

    @ex.main
    def main(_run):
        saver = lit.lightning.pytorch.callbacks.ModelCheckpoint(dirpath=tmp_path / "elsewhere", filename="net")
        logger = lit.module.SacristanLogger(_run)
        trainer = lit.lightning.Trainer(logger=logger, callbacks=[saver], max_epochs=1, **QUIET)
        with lit.module.ending_as_the_run(_run):
            trainer.fit(lit_code.Net(), datamodule=lit_code.Digits())
        assert logger.experiment is _run

    run = ex.run()
    assert run.status == "COMPLETED"
    folder = tmp_path / "my_runs" / "1"
    assert read_metrics(folder)["val/loss"].steps.tolist() == [4]
    assert run.info["checkpoints"] == {"best": str(tmp_path / "elsewhere" / "net.ckpt")}
    assert entry(tmp_path)["artifacts"] == ["net.ckpt"]


def test_logger_lets_lightning_save_into_the_folder_of_the_run(train, lit, tmp_path):
    import lit_code

    ex = Experiment("own", interactive=True)
    ex.observers.append(file_observer(tmp_path / "my_runs"))

    @ex.main
    def main(_run):
        trainer = lit.lightning.Trainer(logger=lit.module.SacristanLogger(_run), max_epochs=1, **QUIET)
        trainer.fit(lit_code.Net(), datamodule=lit_code.Digits())

    ex.run()
    assert len([*(tmp_path / "my_runs" / "1" / "checkpoints").glob("*.ckpt")]) == 1
    assert entry(tmp_path)["artifacts"] == []


def test_modules_of_lightning_export_what_they_have(lit):
    from sacristan.experiments.running import lightning_logger

    assert {*lit.module.__all__} - {"ex"} < {*lightning_logger.__all__}
    assert lit.module.SacristanLogger is lightning_logger.SacristanLogger
    assert all(getattr(lightning_logger, name).__doc__ for name in lightning_logger.__all__)
    with pytest.raises(AttributeError, match=r"module 'sacristan.experiments.lightning' has no attribute 'nothing'"):
        _ = lit.module.nothing
