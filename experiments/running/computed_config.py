"""Compute the config of an experiment, once, before there is a run.

The phases are those of `sacred.initialize.create_run`, which computes a config and makes a run of it in one go. Apart
from each other, checks and aliases come in between, and a config can be computed that no run will have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sacred
from sacred.config.custom_containers import make_read_only
from sacred.initialize import (
    create_scaffolding,
    distribute_config_updates,
    distribute_presets,
    gather_ingredients_topological,
    get_command,
    get_config_modifications,
    get_configuration,
    get_scaffolding_and_config_name,
    initialize_logging,
)
from sacred.randomness import create_rnd, get_seed
from sacred.run import Run
from sacred.utils import (
    convert_to_nested_dict,
    get_by_dotted_path,
    is_prefix,
    iterate_flattened,
    join_paths,
    recursive_update,
    rel_path,
    set_by_dotted_path,
)

from sacristan.experiments.running.aliases import Aliases
from sacristan.experiments.running.log_lines import log_to_stderr
from sacristan.ingredients.config.files import keeping_opaque
from sacristan.ingredients.config.ingredient import make_writable
from sacristan.ingredients.config.named_values import Gathered
from sacristan.ingredients.config.scope import Scope

__all__ = ["ComputedConfig"]


class ComputedConfig:
    """The config of an experiment for one command.

    Args:
        updates: Entries that the command line or a call sets, nested, under both names of an alias.
        named_configs: Named configs and config files, in the order in which they apply.
        log_level: Level of the root logger; None leaves it.

    Attributes:
        values: The whole config, nested.
        changes: Sacred's summary of the entries that were added, modified and documented.
        gathered: The values that named configs set, and the kinds that settings changed.
        of_files: Dotted names of the entries that config files set, of those that the call names.
        legacy_defaults: What settings meant before they existed, nested; see `Scope.legacy`.
    """

    def __init__(
        self,
        experiment: sacred.Experiment,
        command: str,
        updates: Mapping[str, Any],
        named_configs: Sequence[str] = (),
        aliases: Aliases | None = None,
        log_level: str | int | None = None,
    ) -> None:
        parts = gather_ingredients_topological(experiment)
        self.pre_run_hooks = [hook for part in parts for hook in part.pre_run_hooks]
        self.post_run_hooks = [hook for part in parts for hook in part.post_run_hooks]
        self._functions = [function for part in parts for function in part.captured_functions]
        self._scaffolding = create_scaffolding(experiment, parts)
        self.function = get_command(self._scaffolding, command)
        self.of_files: set[str] = set()
        if experiment.logger is None:
            log_to_stderr()
        self.root_logger, self.run_logger = initialize_logging(experiment, self._scaffolding, log_level)
        self._apply_updates(convert_to_nested_dict(updates), named_configs, aliases or Aliases())
        self._evaluate_scopes(command)
        self.values: dict[str, Any] = get_configuration(self._scaffolding)
        self.changes = get_config_modifications(self._scaffolding)
        self.legacy_defaults = _legacy_defaults(experiment, parts)
        self.gathered = Gathered()

    def _apply_updates(self, updates: dict[str, Any], named_configs: Sequence[str], aliases: Aliases) -> None:
        """Pass to each ingredient the entries of it that the call and named configs set."""
        # The deepest first, so that an entry goes to the innermost ingredient.
        prefixes = sorted((path.split(".") for path in self._scaffolding if path), key=len, reverse=True)
        distribute_config_updates(prefixes, self._scaffolding, updates)
        for name in named_configs:
            scaffold, name_of_config = get_scaffolding_and_config_name(name, self._scaffolding)
            scaffold.gather_fallbacks()
            with keeping_opaque():
                entries = scaffold.run_named_config(name_of_config)
            distribute_presets(scaffold.path, prefixes, self._scaffolding, entries)
            for entry, value in iterate_flattened(entries):
                set_by_dotted_path(updates, join_paths(scaffold.path, entry), value)
            if Path(name).is_file():
                self.of_files.update(entry for entry, _ in iterate_flattened(entries))
        aliases.carry(updates)
        distribute_config_updates(prefixes, self._scaffolding, updates)

    def _evaluate_scopes(self, command: str) -> None:
        """Evaluate the config scopes and hooks of each ingredient after those of the ingredients that it uses."""
        for scaffold in self._scaffolding.values():
            scaffold.gather_fallbacks()
            scaffold.set_up_config()
            config = get_configuration(self._scaffolding)
            recursive_update(scaffold.config, scaffold.run_config_hooks(config, command, self.run_logger))

    def set_seeds(self, seed: int | None = None) -> None:
        """Set the seeds of the experiment and its ingredients in the config; call it once, before `bind`.

        `seed` is for an experiment that does not declare one; None draws it.
        """
        root = self._scaffolding[""]
        if seed is not None:
            root.config.setdefault("seed", seed)
        for scaffold in reversed(list(self._scaffolding.values())):
            if isinstance(scaffold.config.get("seed"), float):  # a whole one, from a file
                scaffold.config["seed"] = int(scaffold.config["seed"])
            scaffold.set_up_seed()
        self.values = get_configuration(self._scaffolding)
        self.changes = get_config_modifications(self._scaffolding)

    def replace(self, name: str, value: Any) -> None:
        """Replace the value of an entry, by its dotted name."""
        path = max((path for path in self._scaffolding if is_prefix(path, name)), key=len)
        set_by_dotted_path(self._scaffolding[path].config, rel_path(path, name), value)
        set_by_dotted_path(self.values, name, value)

    def bind(self, run: Run) -> None:
        """Give all captured functions their config, their random stream and the run, until the next run is bound."""
        for scaffold in self._scaffolding.values():
            seed = scaffold.config.get("seed")
            scaffold.rnd = create_rnd(scaffold.seed if seed is None else seed)
            for function in scaffold._captured_functions:
                function.logger = scaffold.logger.getChild(function.__name__)
                function.rnd = create_rnd(get_seed(scaffold.rnd))
                function.run = run
                function.config = get_by_dotted_path(scaffold.get_fixture(), function.prefix, default={})
                if sacred.SETTINGS.CONFIG.READ_ONLY_CONFIG:
                    function.config = make_read_only(function.config)
        if not sacred.SETTINGS.CONFIG.READ_ONLY_CONFIG:
            make_writable(self._functions)


def _legacy_defaults(experiment: sacred.Experiment, parts: Sequence[sacred.Ingredient]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in parts:
        path = "" if part is experiment else part.path
        for scope in (scope for scope in part.configurations if isinstance(scope, Scope)):
            for name, value in scope.legacy_defaults.items():
                set_by_dotted_path(found, join_paths(path, name), value)
    return found
