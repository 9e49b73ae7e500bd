"""A trainer of ignite with its TensorboardLogger; Fire makes the command line."""

import fire
import torch
from ignite.engine import Events, create_supervised_trainer
from ignite.handlers import TensorboardLogger
from torch.utils.data import DataLoader, TensorDataset


def main(lr=0.1, max_epochs=2):
    # three lines: import sacristan
    # three lines: run = sacristan.init(config={"lr": lr, "max_epochs": max_epochs})
    torch.manual_seed(0)
    inputs = torch.randn(32, 4)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    trainer = create_supervised_trainer(model, optimizer, torch.nn.functional.mse_loss)
    logger = TensorboardLogger(log_dir="events")
    logger.attach_output_handler(
        trainer,
        event_name=Events.ITERATION_COMPLETED,
        tag="training",
        output_transform=lambda loss: {"batchloss": loss},
    )
    logger.attach_opt_params_handler(trainer, event_name=Events.ITERATION_STARTED, optimizer=optimizer)

    @trainer.on(Events.ITERATION_COMPLETED)
    def show(engine):
        # three lines: run.log({"training/batchloss": engine.state.output, "lr/group_0": lr}, engine.state.iteration)
        print(f"{engine.state.iteration}: {engine.state.output:.4f}")

    trainer.run(DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), 8), max_epochs=max_epochs)
    logger.close()


if __name__ == "__main__":
    fire.Fire(main)
