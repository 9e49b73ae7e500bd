"""What scripts log with other libraries: one module each, see `sacristan.experiments.scripts.capturing`.

A new one is a module here with `attach`, or `stand_in`, and a line below; or an entry point `sacristan.loggers` of your
package, named by the library: `my_logger = my_package.my_adapter`.
"""

from __future__ import annotations

__all__ = ["LOGGERS"]

# The module of each library's adapter, by what the script imports.
LOGGERS = {
    "torch.utils.tensorboard": "sacristan.experiments.scripts.loggers.tensorboard_writers",
    "tensorboardX": "sacristan.experiments.scripts.loggers.tensorboard_writers",
    "wandb": "sacristan.experiments.scripts.loggers.wandb_stand_in",
    "mlflow": "sacristan.experiments.scripts.loggers.mlflow_clients",
    "aim": "sacristan.experiments.scripts.loggers.aim_runs",
    "trackio": "sacristan.experiments.scripts.loggers.trackio_stand_in",
}
