"""A script for torchrun: DistributedDataParallel on gloo, and a SummaryWriter in the first rank."""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.tensorboard import SummaryWriter

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--steps", type=int, default=5)
args = parser.parse_args()
dist.init_process_group("gloo")
rank = dist.get_rank()
# three lines: import sacristan
# three lines: run = sacristan.init(config=vars(args))
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), args.lr)
torch.manual_seed(rank)
writer = SummaryWriter("events") if rank == 0 else None
for step in range(args.steps):
    inputs = torch.randn(8, 4)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    # three lines: run.log({"loss": mean.item() / dist.get_world_size()}, step)
    if writer is not None:
        writer.add_scalar("loss", mean.item() / dist.get_world_size(), step)
        print(f"{step}: {mean.item() / dist.get_world_size():.4f}")
dist.destroy_process_group()
