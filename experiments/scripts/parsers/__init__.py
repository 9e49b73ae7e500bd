"""What scripts parse, which becomes their config: for each library a function like `attach` of `loggers`."""

from __future__ import annotations

__all__ = ["PARSERS"]

# The function that attaches to each library, by what the script imports.
PARSERS = {
    "argparse": "sacristan.experiments.scripts.parsers.namespaces:attach_argparse",
    "jsonargparse": "sacristan.experiments.scripts.parsers.namespaces:attach_jsonargparse",
    "absl.flags": "sacristan.experiments.scripts.parsers.namespaces:attach_absl",
    "tyro": "sacristan.experiments.scripts.parsers.calls:attach_tyro",
    "click.core": "sacristan.experiments.scripts.parsers.calls:attach_click",
    "typer._click.core": "sacristan.experiments.scripts.parsers.calls:attach_click",
    "fire.core": "sacristan.experiments.scripts.parsers.calls:attach_fire",
    "hydra.core.utils": "sacristan.experiments.scripts.parsers.calls:attach_hydra",
    "hydra._internal.config_repository": "sacristan.experiments.scripts.parsers.calls:attach_hydra_files",
}
