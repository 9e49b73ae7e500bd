"""`Launcher`: makes the runs of an experiment, from the arguments of a call to a checked `LabRun`."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import sacred
from sacred.arg_parser import get_config_updates
from sacred.commandline_options import CLIOption
from sacred.observers import SlackObserver, TelegramObserver

from sacristan.configs import to_plain
from sacristan.configs.files import find_file
from sacristan.experiments.running import LabRun, commands, strictness
from sacristan.experiments.running.captured_output import remember_terminal
from sacristan.experiments.running.command_line import beat_interval_s
from sacristan.experiments.running.commands import check_words, config_of_bundle
from sacristan.experiments.running.computed_config import Aliases, ComputedConfig, origins
from sacristan.experiments.running.main_file import MainFile
from sacristan.experiments.running.one_run import check_nested, given_back
from sacristan.experiments.running.ranks import check_same_config, meet, own_world, publish_config
from sacristan.experiments.running.resuming import folder_to_resume, folder_to_start, forget_folders
from sacristan.experiments.running.system_metrics import check_interval
from sacristan.experiments.running.trial import take_trial
from sacristan.ingredients.config.named_configs import gathering
from sacristan.ingredients.config.scope import lenient
from sacristan.ingredients.errors import ConfigError
from sacristan.ingredients.ranks import Notices, World
from sacristan.observers.file.observer import FileObserver
from sacristan.observers.options import (
    clean_option,
    environment_option,
    file_option,
    force_option,
    mongo_option,
    tensorboard_option,
)
from sacristan.observers.record.identity import CHECK_VARIABLE, NAMED_CONFIGS_VARIABLE
from sacristan.observers.record.redaction import redact
from sacristan.observers.tensorboard.observer import TensorBoardObserver

# Options that are applied last, once a run has passed its checks, and are recorded without secrets.
_OBSERVING: dict[str, CLIOption] = {
    option.get_flag(): option
    for option in (file_option, mongo_option, tensorboard_option, environment_option, clean_option)
}

# Observers that tell or draw; a run that only they observe is recorded as if there were none.
_KEEP_NO_RECORD = (SlackObserver, TelegramObserver, TensorBoardObserver)


@dataclasses.dataclass
class _Request:
    """A call as typed; `reader` is the command whose settings count: the one that print_config shows, or itself."""

    command: str
    reader: str
    updates: dict[str, Any]
    named_configs: tuple[str, ...]
    force: bool
    log_level: Any


class Launcher:
    """Creates the runs of an experiment; `always` are named configs of each, `shown_command` that of print_config."""

    def __init__(
        self,
        experiment: sacred.Experiment,
        main_file: MainFile,
        record_to: str | Path | None,
        system_metrics_s: float | None,
    ) -> None:
        self._experiment = experiment
        self._main_file = main_file
        self._record_to = record_to
        self._system_metrics_s = check_interval(system_metrics_s)
        self.aliases = Aliases()
        self.always: tuple[str, ...] = ()
        self.replay: Any = None
        self.shown_command: str | None = None
        self.shown_words: Sequence[str] = ()
        self.world = World()
        self._is_checking = False

    def show(self, words: Sequence[str], commands: Collection[str]) -> None:
        """Store the words after `print_config` or `save_config`; the first that is a command names that command."""
        self.shown_command = next((word for word in words if word in commands), None)
        position = len(words) if self.shown_command is None else words.index(self.shown_command)
        self.shown_words = (*words[:position], *words[position + 1 :])

    @staticmethod
    def replace_options(options: Sequence[CLIOption]) -> list[CLIOption]:
        """Replace Sacred's command-line options with the lab's of the same name."""
        own_options = {**_OBSERVING, force_option.get_flag(): force_option}
        return [own_options.get(option.get_flag(), option) for option in options]

    def create_run(
        self,
        command: str | None,
        config_updates: Mapping[str, Any],
        named_configs: Sequence[str],
        info: Mapping[str, Any],
        meta_info: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> LabRun:
        """Return a run that has passed all checks and has not started; updates may be nested or dotted."""
        function = dict(self._experiment.gather_commands()).get(command or self._experiment.default_command)
        self.world = own_world(self._experiment, None if self._is_checking else function)
        if os.environ.pop(CHECK_VARIABLE, None):
            self._check_start(config_updates, named_configs, force=bool(options.get("--force")))
        options = self._options(options)
        interval_s, trial = beat_interval_s(options), take_trial()
        _quieten_torch()
        request = self._request(command, config_updates, named_configs, options)
        computed, notices = self._compute(request)
        unread = commands.unread_tools(self._experiment, request.reader)
        noted_origins = self._check_config(computed, request, unread)

        run = LabRun(computed, self._experiment, trial=trial, notices=notices)
        computed.bind(run)  # the checks of ingredients may call captured functions
        run.system_metrics_s = self._system_metrics_s
        run.check_settings = self._check_settings
        run.info.update(info)
        run.meta_info |= {
            **_meta_of(request, options, self._recorded_names()),
            "config_updates": config_updates,
            "origins": noted_origins,
            **meta_info,
        }
        if notices is not None:
            run.meta_info["ranks"] = self.world.note
        for option in self._experiment.all_cli_options:
            if options.get(option.get_flag()) and option.get_flag() not in _OBSERVING:
                option.apply(options[option.get_flag()], run)
        if interval_s is not None:
            run.beat_interval = interval_s
        if not (run.unobserved or run.queue_only):  # a queued run may be for a machine that has what this one lacks
            strictness.check_settings(self._experiment, run.config)
        run.launch_options = {flag: options[flag] for flag in _OBSERVING if options.get(flag)}
        self._attach_observers(run)
        is_recorded = not run.unobserved and any(not isinstance(each, _KEEP_NO_RECORD) for each in run.observers)
        if is_recorded and not request.force:
            strictness.check_comes_back(self._experiment, computed, request.command)
        check_nested(run)
        config = strictness.without_unread(computed, unread)
        self._resume(run, {name: computed.values[name] for name in computed.values.keys() - config.keys()})
        if notices is not None and not self.world.rank:
            publish_config(notices, run.config)
        run.config = config
        return run

    def _options(self, typed: Mapping[str, Any]) -> dict[str, Any]:
        """Return all options of the call; only rank 0 records and draws on the terminal."""
        options = {**self._experiment.get_default_options(), **typed}
        if self.world.rank:
            forget_folders()
            options |= dict.fromkeys(_OBSERVING) | {"--unobserved": True}
        else:
            remember_terminal()
        for hook in self._experiment.option_hooks:
            hook(options=options)
        return options

    def _request(
        self,
        command: str | None,
        config_updates: Mapping[str, Any],
        named_configs: Sequence[str],
        options: Mapping[str, Any],
    ) -> _Request:
        command = command or self._experiment.default_command
        if command is None:
            raise RuntimeError("No command found to be run. Specify a command or define a main function.")
        updates, force = strictness.nested(config_updates), bool(options["--force"])
        named_configs = [_located(name) for name in (*self.always, *named_configs)]
        if self.replay is not None and self._experiment.commands.get(command) is self.replay:
            named_configs = [config_of_bundle(updates.get("bundle")), *named_configs]
        strictness.check_scopes(self._experiment)
        strictness.check_updates(self._experiment, updates, named_configs, force=force)
        reader = self.shown_command or command
        return _Request(command, reader, updates, tuple(named_configs), force, options["--loglevel"])

    # ------------------------------------------------------------------ the config

    def _compute(self, request: _Request) -> tuple[ComputedConfig, Notices | None]:
        """Return the config of a request, with the seed of rank 0, and the notices between the ranks."""
        typed = list(request.updates)
        self.aliases.mirror(request.updates)
        updates = to_plain(request.updates)
        with lenient(request.force), gathering() as gathered, self.aliases.named_as_typed(typed):
            self._gather_recorded(request)
            computed = self._compute_once(request, updates)
            if "seed" in self.aliases.targets and not self.world.rank:
                computed.set_seeds()  # what it stands for gets the seed that is drawn
            if self.aliases.follow(computed.values, computed.changes, updates):
                # The experiment's own scope, which is evaluated last, gave an alias a value: ingredients may use it.
                computed = self._compute_once(request, updates)
        computed.gathered = gathered
        notices = meet(self.world, self._experiment, computed.function)
        if notices is None or not self.world.rank:
            computed.set_seeds()
            return computed, notices
        first = notices.take("config")
        computed.set_seeds(first.get("seed"))
        check_same_config(notices, computed.values, first)
        return computed, notices

    def _gather_recorded(self, request: _Request) -> None:
        """Collect what the named configs of a restarted, recorded run may set; its config already has their values."""
        if names := self._recorded_names():
            with contextlib.suppress(Exception):  # what is wrong shows where the config itself is computed
                self._compute_once(dataclasses.replace(request, named_configs=tuple(names)), {})

    def _recorded_names(self) -> list[str]:
        configs_by_name = dict(self._experiment.gather_named_configs())
        return [name for name in os.environ.get(NAMED_CONFIGS_VARIABLE, "").split(",") if name in configs_by_name]

    def _compute_once(self, request: _Request, updates: Mapping[str, Any]) -> ComputedConfig:
        return ComputedConfig(
            self._experiment, request.command, updates, request.named_configs, self.aliases, request.log_level
        )

    def _check_config(
        self, computed: ComputedConfig, request: _Request, unread: Mapping[str, Sequence[str]]
    ) -> list[dict[str, Any]]:
        """Reject a config that no run can have; return the origins of its entries, as they are recorded."""
        strictness.check_depth(computed.values)
        strictness.check_made(computed.values)
        if not request.force:
            strictness.check_known(self._experiment, computed)
            strictness.warn_of_kinds(computed)
        self.aliases.mark(computed.changes)
        if not request.force:
            strictness.check_read(computed, request.updates, unread, request.reader)
        check_words(
            self.shown_words, strictness.without_unread(computed, unread), dict(self._experiment.gather_commands())
        )
        return origins(self._experiment, computed, request.updates, request.named_configs, self.aliases.targets)

    def _check_settings(self, words: Sequence[str], settings: Mapping[str, Any]) -> None:
        """Reject settings that a run of the main function could not have; see `LabRun.check_settings`."""
        updates, named_configs = get_config_updates(words)
        self._check_start({**updates, **settings}, named_configs)

    def _check_start(self, updates: Mapping[str, Any], named_configs: Sequence[str], *, force: bool = False) -> None:
        """Reject settings with which the main function could not start."""
        with given_back(self._experiment):
            self._is_checking = True
            try:
                run = self.create_run(None, updates, named_configs, {}, {}, {"--unobserved": True, "--force": force})
            finally:
                self._is_checking = False
            strictness.check_settings(self._experiment, run.config)

    # ------------------------------------------------------------------ the record

    def _attach_observers(self, run: LabRun) -> None:
        """Attach the observers that the options ask for, or else one for the experiment's folder of runs."""
        if not run.unobserved:
            run.experiment_info |= self._main_file.provenance(self._experiment)
            run.executed_cells = self._main_file.executed_cells()
        keeps_record = any(not isinstance(observer, _KEEP_NO_RECORD) for observer in run.observers)
        has_folder = keeps_record or file_option.get_flag() in run.launch_options
        if not has_folder and self._record_to is not None and not self.world.rank:
            run.observers.append(FileObserver(self._record_to))
        _apply_observing(run)
        # Of two that record in the same place, as SACRISTAN_RECORD_TO can make them, one is enough.
        run.observers = [each for index, each in enumerate(run.observers) if each not in run.observers[:index]]
        run.recorders = tuple(run.observers)

    def _resume(self, run: LabRun, unread: Mapping[str, Any]) -> None:
        """Continue an earlier record, if any, which lacks `unread` settings, except in those of earlier versions."""
        queued = folder_to_start()
        if queued is not None:
            run.meta_info["queued"] = str(queued)
            return
        if self.world.rank:
            return
        parts = [part for part, _ in list(self._experiment.traverse_ingredients())]
        folder = folder_to_resume(
            run,
            self.aliases.targets,
            self._experiment.default_command,
            legacy_defaults={**run.legacy_defaults, **unread},
            has_ingredient="checkpoint" in [part.path for part in parts],
            world=self.world,
        )
        if folder is not None:
            self._record_beside(run, folder)
            run.resume(folder)

    def _record_beside(self, run: LabRun, folder: Path) -> None:
        """Also resume a run in the folder that `-F` replaces, if it is in both, as in earlier versions."""
        if self._record_to is None or file_option.get_flag() not in run.launch_options:
            return
        default = FileObserver(self._record_to)
        if default not in run.observers and Path(default.basedir).absolute() == folder.absolute().parent:
            run.observers.insert(0, default)
            run.recorders = tuple(run.observers)


def _located(name: str) -> str:
    """Return a named config or config file as typed, or the absolute path of the lab's recipe."""
    file = find_file(name)
    return name if file == Path(name) else str(file)


def _meta_of(request: _Request, options: Mapping[str, Any], recorded_names: Sequence[str]) -> dict[str, Any]:
    """Return the recorded form of a call: its command, options and named configs."""
    observing = {flag: value for flag, value in options.items() if flag in _OBSERVING and isinstance(value, str)}
    return {
        "command": request.command,
        "options": {**options, **{flag: redact(value) for flag, value in observing.items()}},
        "named_configs": [*recorded_names, *request.named_configs],
    }


def _quieten_torch() -> None:
    """Limit torch's log to warnings; its import does so too, but Ctrl-C may come before that."""
    logger = logging.getLogger("torch")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)


def _apply_observing(run: LabRun) -> None:
    """Attach the observers that the command line names."""
    try:
        for flag, value in run.launch_options.items():
            _OBSERVING[flag].apply(value, run)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(str(error)) from error
