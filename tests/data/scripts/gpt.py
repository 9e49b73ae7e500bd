"""A GPT as nanoGPT trains one: globals that a config file and the command line overwrite by exec, and W&B."""

import sys
from ast import literal_eval

import torch
from torch import nn

wandb_project = "owt"
wandb_run_name = "gpt2"
n_embd = 8
block_size = 4
learning_rate = 1e-2
max_iters = 6
eval_interval = 3
config_keys = [k for k, v in globals().items() if not k.startswith("_") and isinstance(v, (int, float, bool, str))]
for arg in sys.argv[1:]:
    if "=" not in arg:
        exec(open(arg).read())  # noqa: SIM115, PTH123
    else:
        key, value = arg.removeprefix("--").split("=")
        globals()[key] = literal_eval(value)
config = {k: globals()[k] for k in config_keys}

import wandb  # noqa: E402

# three lines: import sacristan

wandb.init(project=wandb_project, name=wandb_run_name, config=config)
# three lines: run = sacristan.init(config=config)
torch.manual_seed(1337)
data = torch.randint(16, (64,))
model = nn.Sequential(nn.Embedding(16, n_embd), nn.TransformerEncoderLayer(n_embd, 2, 16, 0.0), nn.Linear(n_embd, 16))
optimizer = torch.optim.AdamW(model.parameters(), learning_rate)


def get_loss():
    index = torch.randint(len(data) - block_size - 1, (4,))
    inputs, targets = (torch.stack([data[i + o : i + o + block_size] for i in index]) for o in (0, 1))
    return nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


for iteration in range(max_iters):
    loss = get_loss()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if iteration % eval_interval == 0:
        with torch.no_grad():
            val_loss = get_loss().item()
        print(f"step {iteration}: train loss {loss.item():.4f}, val loss {val_loss:.4f}")
        row = {"iter": iteration, "train/loss": loss.item(), "val/loss": val_loss, "lr": learning_rate}
        wandb.log(row)
        # three lines: run.log(row)
wandb.finish()
