"""What scripts parse, which becomes their config: one module for each library, with `attach` as those of `loggers`."""

from __future__ import annotations

__all__ = ["PARSERS"]

# The module of each library's adapter, by what the script imports.
PARSERS = {
    "argparse": "sacristan.experiments.scripts.parsers.argparse_namespaces",
    "jsonargparse": "sacristan.experiments.scripts.parsers.jsonargparse_configs",
    "tyro": "sacristan.experiments.scripts.parsers.tyro_objects",
    "click.core": "sacristan.experiments.scripts.parsers.click_commands",
    "typer._click.core": "sacristan.experiments.scripts.parsers.click_commands",
    "fire.core": "sacristan.experiments.scripts.parsers.fire_calls",
    "hydra.core.utils": "sacristan.experiments.scripts.parsers.hydra_jobs",
    "absl.flags": "sacristan.experiments.scripts.parsers.absl_flags",
}
