"""A loop of reinforcement learning as CleanRL has them: tyro, a SummaryWriter, and W&B that takes the same points."""

import random
from dataclasses import dataclass

import torch
import tyro
from torch.utils.tensorboard import SummaryWriter


@dataclass
class Args:
    exp_name: str = "ppo"
    seed: int = 1
    track: bool = False
    wandb_project_name: str = "cleanRL"
    learning_rate: float = 2.5e-4
    total_timesteps: int = 40
    num_steps: int = 10


if __name__ == "__main__":
    args = tyro.cli(Args)
    if args.track:
        import wandb

        wandb.init(project=args.wandb_project_name, config=vars(args), name=args.exp_name)
    # three lines: import sacristan
    # three lines: run = sacristan.init(config=vars(args))
    writer = SummaryWriter("events")
    writer.add_text("hyperparameters", "\n".join(f"|{key}|{value}|" for key, value in vars(args).items()))
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    policy = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.Adam([policy], args.learning_rate)
    global_step = 0
    for _ in range(args.total_timesteps // args.num_steps):
        actions = torch.distributions.Categorical(logits=policy).sample((args.num_steps,))
        rewards = actions.float() + torch.randn(args.num_steps)
        global_step += args.num_steps
        loss = -(torch.log_softmax(policy, 0)[actions] * rewards).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scalars = {"charts/episodic_return": rewards.sum().item(), "losses/policy_loss": loss.item()}
        for name, value in scalars.items():
            writer.add_scalar(name, value, global_step)
        if args.track:
            wandb.log(scalars, step=global_step)
        # three lines: run.log(scalars, global_step)
        print(f"global_step={global_step}, episodic_return={rewards.sum().item():.3f}")
    writer.close()
