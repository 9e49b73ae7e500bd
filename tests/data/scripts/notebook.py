"""The cells of a notebook that logs to W&B; its test makes an `.ipynb` of them."""

# %%
import torch
import wandb

# three lines: import sacristan
lr = 0.1
wandb.init(project="notebook", config={"lr": lr})
# three lines: run = sacristan.init(config={"lr": lr})
# %%
torch.manual_seed(0)
weight = torch.randn(3)
for _ in range(4):
    weight = weight - lr * 2 * weight
    wandb.log({"loss": weight.pow(2).sum().item()})
    # three lines: run.log({"loss": weight.pow(2).sum().item()})
# %%
print(f"{weight.pow(2).sum().item():.4f}")
wandb.finish()
