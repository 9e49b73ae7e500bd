"""An application of Hydra that logs to MLflow."""

import hydra
import mlflow
import torch
from omegaconf import DictConfig, OmegaConf


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config: DictConfig) -> None:
    # three lines: import sacristan
    # three lines: run = sacristan.init(config=OmegaConf.to_container(config, resolve=True))
    torch.manual_seed(config.seed)
    weight = torch.zeros(3, requires_grad=True)
    mlflow.set_experiment("hydra")
    with mlflow.start_run():
        mlflow.log_params({"name": config.optimizer.name, "rate": config.optimizer.lr})
        for step in range(config.steps):
            loss = (weight - torch.arange(3.0)).pow(2).sum()
            (gradient,) = torch.autograd.grad(loss, weight)
            weight = (weight - config.optimizer.lr * gradient).detach().requires_grad_()
            mlflow.log_metric("loss", loss.item(), step=step)
            # three lines: run.log({"loss": loss.item()}, step)
    print(f"loss {loss.item():.4f} with {OmegaConf.to_container(config)}")


if __name__ == "__main__":
    main()
