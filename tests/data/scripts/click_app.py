"""Commands of click that log to Aim."""

import click
import torch
from aim import Run


@click.group()
@click.option("--verbose/--quiet", default=True)
def main(verbose):
    pass


@main.command()
@click.argument("data", default="digits")
@click.option("--lr", default=0.1, show_default=True)
@click.option("--steps", default=4)
def train(data, lr, steps):
    """Train on DATA."""
    # three lines: import sacristan
    # three lines: run = sacristan.init(config={"data": data, "lr": lr, "steps": steps})
    aim_run = Run(experiment=data, system_tracking_interval=None, capture_terminal_logs=False, log_system_params=False)
    aim_run["hparams"] = {"lr": lr, "steps": steps}
    torch.manual_seed(0)
    weight = torch.randn(3)
    for step in range(steps):
        weight = weight - lr * 2 * weight
        aim_run.track(weight.pow(2).sum().item(), name="loss", step=step, context={"subset": "train"})
        # three lines: run.log({"train/loss": weight.pow(2).sum().item()}, step)
        click.echo(f"{step}: {weight.pow(2).sum().item():.4f}")
    aim_run.close()


if __name__ == "__main__":
    main()
