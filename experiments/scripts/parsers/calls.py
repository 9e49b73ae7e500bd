"""Parsers that call functions: click and Typer, Fire, tyro, Hydra. The config is the arguments, defaults included."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from pathlib import Path
from typing import Any

from sacristan.experiments.running.added_settings import as_setting
from sacristan.experiments.scripts.capturing import Capture, watched
from sacristan.experiments.scripts.parsers.namespaces import typed_in
from sacristan.observers.provenance.sources import count_as_source

# Where a value came from that somebody typed, or set for this run.
_TYPED = ("COMMANDLINE", "ENVIRONMENT", "PROMPT")
_FILE = "file://"


def attach_click(module: Any, capture: Capture) -> None:
    """Watch how a command makes the context of its parameters, which it has beside those of the groups around it."""

    def note(context: Any, *_: Any, **options: Any) -> None:
        if options.get("resilient_parsing") or context.resilient_parsing:
            return
        values = {str(name): value for name, value in context.params.items()}
        typed = [name for name in values if getattr(context.get_parameter_source(name), "name", "") in _TYPED]
        if context.parent is not None and context.info_name:
            values["command"] = context.info_name
        if values:
            capture.config(values, typed, library="click", call="command")

    module.Command.make_context = watched(module.Command.make_context, note)


def attach_fire(module: Any, capture: Capture) -> None:
    """Watch what its core parses for a call."""
    make = module._MakeParseFn

    @functools.wraps(make)
    def make_parse_function(function: Any, metadata: Any) -> Any:
        def note(result: Any, _: Any) -> None:
            (args, kwargs), consumed = result[:2]
            bound = inspect.signature(function).bind(*args, **kwargs)
            bound.apply_defaults()
            config, words = dict(bound.arguments), [str(word) for word in consumed]
            num_positional = len(list(itertools.takewhile(lambda word: not word.startswith("-"), words)))
            if config:
                typed = {*typed_in(words, config), *[*config][:num_positional]}
                capture.config(config, sorted(typed), library="fire", call="Fire")

        return watched(make(function, metadata), note)

    module._MakeParseFn = make_parse_function


def attach_tyro(module: Any, capture: Capture) -> None:
    """Watch `tyro.cli`, which returns an object or calls a function; its arguments are known when it begins."""

    def note(config: Any, args: Any, command: str | None = None) -> None:
        words = sys.argv[1:] if args is None else list(args)
        settings = as_setting(config)
        if isinstance(settings, list):  # of a tuple, whose options are `--0.lr`, `--1.width`
            settings = {str(index): value for index, value in enumerate(settings)}
        if isinstance(settings, dict):
            typed = typed_in(words, settings)
            settings |= {} if command is None else {"command": command}
            capture.config(settings, typed, library="tyro", call="cli")
        else:
            capture.unknown("tyro", f"cli for {type(config).__name__}")

    def note_result(result: Any, f: Any, *_: Any, args: Any = None, **options: Any) -> None:
        if not _is_called(f):
            note(result[0] if options.get("return_unknown_args") else result, args)

    def noting(function: Any, args: Any, command: str | None = None) -> Any:
        """Return a function that tells its arguments when it is called; of a partial one, those that are left."""
        if isinstance(function, functools.partial):
            return functools.partial(noting(function.func, args, command), *function.args, **function.keywords)
        return _noting(function, lambda config: note(config, args, command)) if _is_called(function) else function

    watched_cli, from_dict = watched(module.cli, note_result), module.extras.subcommand_cli_from_dict

    @functools.wraps(module.cli)
    def cli(f: Any, *others: Any, **options: Any) -> Any:
        if capture.run is not None:
            f = noting(f, options.get("args"))
        return watched_cli(f, *others, **options)

    @functools.wraps(from_dict)
    def subcommand_cli_from_dict(subcommands: Any, *others: Any, **options: Any) -> Any:
        if capture.run is not None:
            args = options.get("args")
            subcommands = {name: noting(function, args, name) for name, function in subcommands.items()}
        return from_dict(subcommands, *others, **options)

    module.cli, module.extras.subcommand_cli_from_dict = cli, subcommand_cli_from_dict


def _is_called(f: Any) -> bool:
    """Return whether this is a function that the parser runs, rather than a class of settings."""
    return inspect.isroutine(f) or isinstance(f, functools.partial)


def _noting(function: Any, note: Any) -> Any:
    """Return a function that tells its arguments when it is called."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        watched(lambda: None, lambda _: note(dict(bound.arguments)))()
        return function(*args, **kwargs)

    return call


def attach_hydra(module: Any, capture: Capture) -> None:
    """Watch the function that runs a Hydra job, and record its config first; each job of a multirun is a run."""
    run_job = module.run_job

    @functools.wraps(run_job)
    def run(task_function: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        jobs = capture.jobs if str(config.hydra.mode).endswith("MULTIRUN") else None
        with capture.guarded("hydra", "run_job"):
            if jobs is not None:
                jobs.begin([str(word) for word in config.hydra.overrides.task])
            _tell(capture, config)
        done = run_job(task_function, config, *args, **kwargs)
        if jobs is not None:
            error = done._return_value if done.status.name == "FAILED" else None
            jobs.end(error if isinstance(error, BaseException) else None)
        return done

    module.run_job = run


def attach_hydra_files(module: Any, capture: Capture) -> None:
    """Count the files that a config of Hydra is composed of as sources, to reproduce the run without them."""

    def note(result: Any, _: Any, config_path: str) -> None:
        if result is not None and capture.run is not None and str(result.path).startswith(_FILE):
            name = config_path if config_path.endswith((".yaml", ".yml")) else f"{config_path}.yaml"
            count_as_source(Path(result.path.removeprefix(_FILE)).absolute() / name)

    module.ConfigRepository.load_config = watched(module.ConfigRepository.load_config, note)


def _tell(capture: Capture, config: Any) -> None:
    from omegaconf import OmegaConf

    overrides = [str(word).lstrip("+~").partition("=")[0] for word in config.hydra.overrides.task]
    settings = OmegaConf.masked_copy(config, [str(name) for name in config if name != "hydra"])
    found = OmegaConf.to_container(settings)
    # If one cannot be resolved yet, all stay as written: the script may register its resolver later.
    with capture.guarded("hydra", "resolving interpolations"):
        found = OmegaConf.to_container(settings, resolve=True)
    capture.config(found, overrides, library="hydra", call="main")
