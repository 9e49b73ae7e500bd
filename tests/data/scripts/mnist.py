"""An MNIST loop as PyTorch's examples have it: argparse, and curves by a SummaryWriter."""

import argparse

import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

parser = argparse.ArgumentParser(description="PyTorch MNIST Example")
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--dry-run", action="store_true")
args = parser.parse_args()

# three lines: import sacristan
# three lines: run = sacristan.init(config=vars(args))
torch.manual_seed(0)
images, labels = torch.rand(64, 1, 8, 8), torch.randint(10, (64,))
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
optimizer = torch.optim.SGD(model.parameters(), args.lr)
writer = SummaryWriter("events")
step = 0
for epoch in range(args.epochs):
    for batch in torch.randperm(64).split(args.batch_size):
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        writer.add_scalar("train/loss", loss.item(), step)
        # three lines: run.log({"train/loss": loss.item()}, step)
        step += 1
    accuracy = (model(images).argmax(1) == labels).float().mean().item()
    writer.add_scalar("test/accuracy", accuracy, step)
    # three lines: run.log({"test/accuracy": accuracy}, step)
    print(f"Epoch {epoch}: accuracy {accuracy:.4f}")
writer.close()
