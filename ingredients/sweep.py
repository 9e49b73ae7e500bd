"""Ingredient `sweep`: many runs of the experiment, whose settings a sampler chooses; see `docs/sweeping.md`.

    python exp.py sweep.run with sweep.over='{lr: [1e-3, 1e-2]}' epochs=3
    python exp.py sweep.run with sweep.spec=configs/sweeps/lr.yaml sweep.count=40 sweep.workers=2

Other settings behind `with` apply to all of its runs.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from sacristan.configs import Map, to_plain
from sacristan.configs.files import load_yaml
from sacristan.ingredients.config.ingredient import Ingredient
from sacristan.ingredients.errors import ConfigError

if TYPE_CHECKING:
    from sacristan.runs.sweeps import Definition
    from sacristan.runs.sweeps.agents import AgentOptions
    from sacristan.runs.sweeps.agents.engines import Engine
    from sacristan.runs.sweeps.spec import Spec
    from sacristan.runs.sweeps.study.home import Place

__all__ = ["ingredient"]

# Options of the command line that say where a run is recorded, or do something else than run it.
_NOT_FOR_TRIALS = {
    *("--file_storage", "--mongo_db", "--queue", "--print-config", "--unobserved", "--id", "--help", "--pdb", "--name"),
    "--debug",
}

# Lowest values of numeric settings, with what else they may be.
_LEAST = {
    "workers": (1, ""),
    "workers_per_gpu": (1, ""),
    "retries": (0, ""),
    "count": (1, ", or None for all points"),
    "reseed": (2, " runs, to estimate a spread"),
}

ingredient = Ingredient("sweep", is_tool=True)


@ingredient.config
def config() -> None:
    # file with parameters, search method and objective, in the format of W&B's sweeps
    spec: str | None = None
    # parameters in one line, such as '{lr: [1e-3, 1e-2]}': lists are values to try
    over: str | dict | None = None
    # with sweep.over: search method: grid, random, bayes, and others in docs/sweep_specs.md
    method = "grid"
    # with sweep.over: the objective, such as val/accuracy.max, or result, the run's return value; None for none
    metric: str | None = None
    # with sweep.over: minimize or maximize the metric
    goal: Literal["minimize", "maximize"] = "minimize"
    # name of the sweep; None derives it from the definition, so that the same command continues the sweep
    id: str | None = None
    # maximum number of points; None tries all of a grid
    count: int | None = None
    # number of agents; on this machine they share the CPU threads
    workers = 1
    # where agents run: local, this machine; ray, the nodes of a cluster; slurm, the tasks of an array job
    engine: Literal["local", "ray", "slurm"] = "local"
    # with sweep.engine=ray: address of the cluster, such as auto or ray://head:10001; None starts Ray on this machine
    address: str | None = None
    # resources of each agent on a cluster, such as {cpus: 4, gpus: 0.5, memory_gb: 16}; default one CPU
    resources: str | dict = {}
    # with sweep.engine=slurm: options of the job, such as {partition: gpu, timeout_min: 240}
    slurm: str | dict = {}
    # number of workers that share a GPU; the visible GPUs are divided among the workers
    workers_per_gpu = 1
    # seed of the search; also the first seed if points run with several
    sampler_seed = 0
    # for sweep.best: runs of each of the best three points on fresh seeds; None uses the sweep's runs alone
    reseed: int | None = None
    # how often a point is retried when its run or its agent was killed
    retries = 3
    # when a sweep is continued: run its failed points again, such as after their bug is fixed
    retry_failed = False
    # time limit of a trial's run in seconds; a longer run is ended and its trial fails; None for no limit
    trial_timeout_s: float | None = None
    # also run points with the parameters of a finished one
    repeat = False
    # modules that an agent imports once for all of its runs; None for the usual ones
    packages: list[str] | None = None
    # URL of an Optuna storage to keep the study in; None keeps it where the runs are
    storage: str | None = None


@ingredient.check
def check_config(config: Map) -> None:
    """Reject numbers out of range, and options that the engine does not take."""
    for name, (least, otherwise) in _LEAST.items():
        if config[name] is not None and config[name] < least:
            raise ConfigError(f"sweep.{name}: got {config[name]}, expected at least {least}{otherwise}")
    if config.storage is not None and urlsplit(config.storage).password is not None:
        raise ConfigError(
            "sweep.storage: got a URL with a password, which would be written down with the sweep; leave it out, and "
            "give it by the database's own means, such as PGPASSWORD or ~/.pgpass"
        )
    if config.trial_timeout_s is not None and not config.trial_timeout_s > 0:
        raise ConfigError(f"sweep.trial_timeout_s: got {config.trial_timeout_s}, expected more than 0, or None")
    if config.engine != "local" or config.address or config.resources or config.slurm:
        with _errors():
            _engine(config).check()


@ingredient.command(unobserved=True)
def run(_config: Map, _run: Any) -> Any:
    """Start a sweep with agents; the same command again continues where it stopped, another one extends the search."""
    check_config(_config)
    with _errors():
        from sacristan.runs.sweeps.agents.commands import run_sweep

        place, spec = _place(_run), _spec(_config)
        definition, agent_options = _definition(_config, _run, spec), _agent_options(_config, _run, place, spec, {})
        engine, check = _engine(_config), _run.check_settings
        status = run_sweep(
            place, spec, definition, agent_options, _workers(_config), engine, check, _config.retry_failed
        )
    return {"sweep": definition.id, "complete": status.count("COMPLETE"), "failed": status.count("FAIL")}


@ingredient.command(unobserved=True)
def agent(_config: Map, _run: Any) -> int:
    """Work on a sweep (sweep.id=...) that was started elsewhere, until nothing is left to take."""
    check_config(_config)
    with _errors():
        from sacristan.runs.sweeps.agents.commands import join_sweep
        from sacristan.runs.work import divided_threads

        place, id = _place(_run), _id(_config)
        environment = {**divided_threads(_config.workers), **_workers(_config)[0]}
        agent_options = _agent_options(_config, _run, place, _spec_of(place, id), environment)
        return join_sweep(place, id, agent_options, _run.experiment_info["name"])


@ingredient.command(unobserved=True)
def status(_config: Map, _run: Any) -> None:
    """Show the status of a sweep (sweep.id=...); without an id, of all sweeps."""
    with _errors():
        from sacristan.runs.sweeps.agents.commands import show_status

        show_status(_place(_run), _config.id)


@ingredient.command(unobserved=True)
def stop(_config: Map, _run: Any) -> None:
    """Stop a sweep (sweep.id=...): finish the current runs, and start none."""
    with _errors():
        from sacristan.runs.sweeps.agents.commands import stop_sweep

        stop_sweep(_place(_run), _id(_config))


@ingredient.command(unobserved=True)
def best(_config: Map, _run: Any) -> dict[str, Any] | None:
    """Show the best trial of a sweep (sweep.id=...), and the command that runs it again.

    With sweep.reseed=5 the best three are run again on five fresh seeds each, and judged by those runs alone.
    """
    check_config(_config)
    with _errors():
        from sacristan.runs.sweeps.agents.commands import best_trials
        from sacristan.runs.work import divided_threads

        place, workers = _place(_run), _workers(_config)

        def agent_options(spec: Spec) -> AgentOptions:
            return _agent_options(_config, _run, place, spec, divided_threads(len(workers)))

        name = _run.experiment_info["name"]
        return best_trials(place, _id(_config), name, _config.reseed, agent_options, workers)


@ingredient.command(unobserved=True)
def plot(_config: Map, _run: Any) -> None:
    """Draw a sweep (sweep.id=...): one page for the browser, and a picture of each plot."""
    with _errors():
        from sacristan.runs.sweeps.agents.commands import plot_sweep

        plot_sweep(_place(_run), _id(_config))


# ---------------------------------------------------------------------- what the commands have in common


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Turn errors of sweeps and of the disk into an error of one line that ends the command."""
    from sacristan.runs.errors import RunsError

    try:
        yield
    except RunsError as error:
        raise ConfigError(str(error)) from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise ConfigError(
            f"the sweep cannot be written down ({where}{error.strerror or error}); make room or check permissions, and "
            "give the same command again"
        ) from error


def _place(run: Any) -> Place:
    """Return the folder or database of the sweeps for a run with these observers."""
    from sacristan.runs.sweeps.study.home import Place

    folder = run.launch_options.get("--file_storage")
    bases = [Path(observer.basedir) for observer in run.recorders if hasattr(observer, "basedir")]
    if folder is not None:  # beside what the experiment records to by itself
        bases.insert(0, Path(folder))
    databases = [observer.destination.address for observer in run.recorders if hasattr(observer, "destination")]
    return Place(bases[0] if bases else Path("my_runs"), databases[0] if databases else "")


def _spec(config: Map) -> Spec:
    from sacristan.runs.sweeps.spec import read_over, read_spec

    if (config.spec is None) == (config.over is None):
        got = "neither" if config.spec is None else "both"
        raise ConfigError(
            f"sweep.run: got {got} of sweep.spec and sweep.over, expected one of them: a file, or what to vary, such as"
            " sweep.over='{lr: [1e-3, 1e-2]}'"
        )
    if config.spec is not None:
        return read_spec(Path(config.spec))
    over = _mapping(config, "over", "{lr: [1e-3, 1e-2]}")
    metric = {"name": config.metric, "goal": config.goal} if config.metric else None
    return read_over(over, method=config.method, metric=metric)


def _mapping(config: Map, name: str, example: str) -> dict[str, Any]:
    """Return an entry that is a mapping, or a YAML text of one."""
    import yaml

    value = to_plain(config[name])
    try:
        content = load_yaml(value) if isinstance(value, str) else value
    except yaml.YAMLError as error:
        raise ConfigError(
            f"sweep.{name}: got {value!r}, which is not valid YAML ({' '.join(str(error).split())}); expected a mapping"
            f" such as {example}"
        ) from error
    if not isinstance(content, dict):
        raise ConfigError(f"sweep.{name}: got {value!r}, expected a mapping such as {example}")
    return content


def _settings(run: Any) -> tuple[str, ...]:
    """Return the settings after `with`, without those of the sweep itself."""
    words = run.meta_info["options"].get("UPDATE") or []
    return tuple(word for word in words if not word.startswith("sweep."))


def _definition(config: Map, run: Any, spec: Spec) -> Definition:
    from sacristan.runs.sweeps import Definition

    info = run.experiment_info
    options = run.meta_info["options"]
    flags = {name: value for name, value in options.items() if name.startswith("--") and name not in _NOT_FOR_TRIALS}
    words = [
        name if value is True else f"{name}={value}" for name, value in flags.items() if value not in (None, False)
    ]
    settings = _settings(run)
    return Definition(
        id=config.id or Definition.id_of(info["name"], spec.document, settings, config.sampler_seed),
        experiment=info["name"],
        spec=spec.document,
        script=info["mainfile"] or "",
        module=info.get("module", ""),
        base=str(info["base_dir"]),
        cwd=str(Path.cwd()),
        settings=settings,
        options=tuple(words),
        seed=config.sampler_seed,
        count=config.count,
        storage=config.storage or "",
        created=datetime.now(UTC).isoformat(),
    )


def _id(config: Map) -> str:
    if config.id is None:
        raise ConfigError("sweep.id: got none, expected the id of a sweep, which sweep.run prints: with sweep.id=...")
    return config.id


def _spec_of(place: Place, id: str) -> Spec:
    """Return the spec of a sweep that was started elsewhere."""
    from sacristan.runs.sweeps.spec import spec_of

    with contextlib.closing(place.home(id)) as home:
        return spec_of(home.definition())


def _workers(config: Map) -> list[dict[str, str]]:
    """Return the variables of each agent's runs: a GPU for each, shared by `workers_per_gpu`."""
    from sacristan.runs.work import visible_gpus

    gpus = visible_gpus(os.environ)
    if not gpus:
        return [{} for _ in range(config.workers)]
    return [
        {"CUDA_VISIBLE_DEVICES": gpus[index // config.workers_per_gpu % len(gpus)]} for index in range(config.workers)
    ]


def _engine(config: Map) -> Engine:
    from sacristan.runs.sweeps.agents.engines import Engine

    resources = _mapping(config, "resources", "{cpus: 4, gpus: 1}")
    return Engine(config.engine, config.address, resources, _mapping(config, "slurm", "{partition: gpu}"))


def _agent_options(config: Map, run: Any, place: Place, spec: Spec, environment: Mapping[str, str]) -> AgentOptions:
    from sacristan.runs.sweeps.agents import AgentOptions

    deadline = None if spec.budget_s is None else time.time() + spec.budget_s
    database = run.launch_options.get("--mongo_db")
    options = [] if database is None else [f"--mongo_db={database}"]
    if not any(hasattr(observer, "basedir") for observer in run.recorders):
        # A trial has a folder in any case: its state is resumed from there.
        options.append(f"--file_storage={place.base.absolute()}")
    packages = None if config.packages is None else tuple(config.packages)
    return AgentOptions(
        place.base,
        tuple(options),
        dict(environment),
        packages,
        config.retries,
        config.repeat,
        deadline,
        config.trial_timeout_s,
        lab=Path(run.experiment_info["base_dir"]),
    )
