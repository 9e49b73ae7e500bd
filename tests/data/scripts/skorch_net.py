"""A net of skorch with its callback for W&B."""

import argparse

import skorch
import torch
import wandb
from skorch.callbacks import WandbLogger

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--max-epochs", type=int, default=3)
args = parser.parse_args()
# three lines: import sacristan
# three lines: run = sacristan.init(config=vars(args))
torch.manual_seed(0)
inputs = torch.randn(32, 4)
wandb_run = wandb.init(project="skorch")
net = skorch.NeuralNetRegressor(
    torch.nn.Linear, module__in_features=4, module__out_features=1, lr=args.lr, max_epochs=args.max_epochs,
    callbacks=[WandbLogger(wandb_run, save_model=False)], callbacks__print_log=None,
)  # fmt: skip
net.fit(inputs, inputs.sum(1, keepdim=True))
for row in net.history:
    print(f"{row['epoch']}: {row['train_loss']:.4f} {row['valid_loss']:.4f}")
    # three lines: run.log({name: row[name] for name in ("train_loss", "valid_loss")}, row["epoch"] - 1)
wandb.finish()
