"""A loop with Accelerate, which logs to its own TensorBoard tracker."""

import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--num_epochs", type=int, default=2)
args = parser.parse_args()
# three lines: import sacristan
# three lines: run = sacristan.init(config=vars(args))
accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=".")
accelerator.init_trackers("events", config=vars(args))
torch.manual_seed(0)
inputs = torch.randn(32, 4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), args.lr)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), 8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
step = 0
for epoch in range(args.num_epochs):
    for batch, targets in loader:
        loss = (model(batch) - targets).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.log({"train_loss": loss.item()}, step=step)
        # three lines: run.log({"train_loss": loss.item()}, step)
        step += 1
    accelerator.print(f"epoch {epoch}: {loss.item():.4f}")
accelerator.end_training()
