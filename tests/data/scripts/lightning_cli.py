"""A LightningModule and a DataModule behind LightningCLI, with Lightning's own TensorBoard logger."""

import lightning as L
import torch
from lightning.pytorch.cli import LightningCLI
from torch.utils.data import DataLoader, TensorDataset


class Net(L.LightningModule):
    def __init__(self, hidden: int = 4, lr: float = 0.1):
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, hidden), torch.nn.Linear(hidden, 1))

    def training_step(self, batch, batch_idx):
        loss = (self.layers(batch[0]) - batch[1]).pow(2).mean()
        self.log("train_loss", loss)
        # three lines: run.log({"train_loss": loss.item()}, self.global_step)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", (self.layers(batch[0]) - batch[1]).pow(2).mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.hparams.lr)


class Data(L.LightningDataModule):
    def __init__(self, batch_size: int = 8):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(32, 8, generator=generator)
        self.data, self.batch_size = TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size

    def train_dataloader(self):
        return DataLoader(self.data, self.batch_size)

    def val_dataloader(self):
        return DataLoader(self.data, self.batch_size)


if __name__ == "__main__":
    # three lines: import sacristan
    # three lines: run = sacristan.init()
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    defaults = {"max_epochs": 2, "accelerator": "cpu", "devices": 1, "log_every_n_steps": 1, **quiet}
    place = {"save_dir": ".", "name": "", "version": "events"}
    logger = {"class_path": "lightning.pytorch.loggers.TensorBoardLogger", "init_args": place}
    options = {"trainer_defaults": {**defaults, "logger": logger}, "save_config_callback": None}
    cli = LightningCLI(Net, Data, seed_everything_default=0, **options)
    # three lines: run.config.update(cli.config.as_dict()["fit"]["model"])
    print(f"val_loss {cli.trainer.callback_metrics['val_loss']:.4f}")
