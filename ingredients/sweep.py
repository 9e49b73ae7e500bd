"""Ingredient `sweep`: many runs of the experiment, whose settings a sampler chooses; see `docs/sweeping.md`.

    python exp.py sweep.run with sweep.over='{lr: [1e-3, 1e-2]}' epochs=3
    python exp.py sweep.run with sweep.spec=configs/sweeps/lr.yaml sweep.count=40 sweep.workers=2

What else stands behind `with` holds for all of its runs.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from configs import Map, to_plain
from configs.yaml_text import load_yaml
from ingredients.config.ingredient import Ingredient
from ingredients.errors import ConfigError

if TYPE_CHECKING:
    from runs.sweeps.agents.engines import Engine
    from runs.sweeps.agents.trials import Means
    from runs.sweeps.spec.definition import Definition
    from runs.sweeps.spec.spec import Spec
    from runs.sweeps.study.home import Home
    from runs.sweeps.study.place import Place
    from runs.sweeps.views.status import Watcher

__all__ = ["ingredient"]

# Options of the command line that say where a run is recorded, or do something else than run it.
_NOT_FOR_TRIALS = {
    *("--file_storage", "--mongo_db", "--queue", "--print-config", "--unobserved", "--id", "--help", "--pdb", "--name"),
    "--debug",
}

_JUDGES_NOTHING = "it judges nothing, so no trial is the best; give it a metric"

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
    """Refuse numbers that make no sense."""
    for name in ("workers", "workers_per_gpu"):
        if config[name] < 1:
            raise ConfigError(f"sweep.{name}: got {config[name]}, expected at least 1")
    if config.count is not None and config.count < 1:
        raise ConfigError(f"sweep.count: got {config.count}, expected at least 1, or None for all points")
    if config.reseed is not None and config.reseed < 2:
        raise ConfigError(
            f"sweep.reseed: got {config.reseed}, expected at least 2 runs, from which a spread can be told"
        )
    if config.storage is not None and urlsplit(config.storage).password is not None:
        raise ConfigError(
            "sweep.storage: got a URL with a password, which would be written down with the sweep; leave it out, and "
            "give it by the database's own means, such as PGPASSWORD or ~/.pgpass"
        )
    if config.retries < 0:
        raise ConfigError(f"sweep.retries: got {config.retries}, expected 0 or more")
    if config.trial_timeout_s is not None and not config.trial_timeout_s > 0:
        raise ConfigError(f"sweep.trial_timeout_s: got {config.trial_timeout_s}, expected more than 0, or None")
    if config.engine != "local" or config.address or config.resources or config.slurm:
        with _errors():
            _engine(config).check()


@ingredient.command(unobserved=True)
def run(_config: Map, _run: Any) -> Any:
    """Start a sweep with agents; the same command again continues where it stopped."""
    from runs.sweeps.study.continuing import take_up
    from runs.sweeps.study.own_storage import check_storage
    from runs.sweeps.study.samplers import check_extra
    from runs.sweeps.study.undelivered import deliver, undelivered_lines
    from runs.sweeps.views.status import check_not_all_failed, status_lines

    check_config(_config)
    with _errors():
        _engine(_config).check_extras()
        place, spec = _place(_run), _spec(_config)
        definition = _definition(_config, _run, spec)
        check_extra(spec)
        for note in (*spec.notes, *_program_notes(spec, definition)):
            print(f"note: {note}")
        definition.check_parameters(spec.parameters)
        _check_points(_run, spec, definition)
        check_storage(definition)  # before anything is written
        home = place.home(definition.id)
        if not home.create(definition):
            definition, notes = take_up(home, definition)
            for note in notes:
                print(f"note: {note}", flush=True)
            home.stop(False)
        home.close()
        folder = place.base / "sweeps" / definition.id
        folder.mkdir(parents=True, exist_ok=True)
        print(f"sweep {definition.id} in {home.where}; its runs: python -m runs ls --sweep {definition.id}", flush=True)
        means = _means(_config, _run, place, spec, {})
        try:
            status = _engine(_config).run(place, definition, means, _workers(_config), folder / "output.log")
        except KeyboardInterrupt:
            if _config.engine != "slurm":  # whose job goes on
                print(f"interrupted; to go on with sweep {definition.id}, give the same command again", flush=True)
            raise
        if not getattr(sys.stdout, "isatty", bool)():  # where it stands already
            for line in status_lines(status, tuple(objective.name for objective in spec.objectives)):
                print(line)
        deliver(place, definition.id)
        for line in undelivered_lines(place, definition.id):
            print(line, flush=True)
        check_not_all_failed(status, folder)
    return {"sweep": definition.id, "complete": status.count("COMPLETE"), "failed": status.count("FAIL")}


@ingredient.command(unobserved=True)
def agent(_config: Map, _run: Any) -> int:
    """Work on a sweep (sweep.id=...) that was started elsewhere, until nothing is left to take."""
    from runs.sweeps.agents.agent_process import work
    from runs.work.sharing import divided_threads

    check_config(_config)
    with _errors():
        place = _place(_run)
        home, spec = _existing(place, _config)
        id = home.definition().id
        _tell_place(_run, home.definition())
        home.close()
        environment = {**divided_threads(_config.workers), **_workers(_config)[0]}
        return work(place, id, _means(_config, _run, place, spec, environment))


@ingredient.command(unobserved=True)
def status(_config: Map, _run: Any) -> None:
    """Show the status of a sweep (sweep.id=...); without an id, of all sweeps."""
    from runs.errors import SweepError
    from runs.sweeps.study.undelivered import undelivered_lines
    from runs.sweeps.views.status import Watcher, status_lines

    with _errors():
        place = _place(_run)
        ids = place.ids() if _config.id is None else [_config.id]
        if not ids:
            print("there is no sweep yet; start one: sweep.run with sweep.over='{lr: [1e-3, 1e-2]}'")
        for id in ids:
            try:
                with contextlib.closing(place.home(id)) as home:
                    watcher = Watcher(home)
                    names = tuple(objective.name for objective in watcher.spec.objectives)
                    for line in (*status_lines(watcher.look(), names), *undelivered_lines(place, id)):
                        print(line)
            except SweepError as error:
                if _config.id is not None:
                    raise
                print(f"sweep {id}: {error}")


@ingredient.command(unobserved=True)
def stop(_config: Map, _run: Any) -> None:
    """Stop a sweep (sweep.id=...): finish the current runs, and start none."""
    with _errors():
        home, _ = _existing(_place(_run), _config)
        home.stop()
        print(f"sweep {home.id}: no more runs are started; to go on: sweep.run with sweep.id={home.id}")
        home.close()


@ingredient.command(unobserved=True)
def best(_config: Map, _run: Any) -> dict[str, Any] | None:
    """Show the best trial of a sweep (sweep.id=...), and the command that runs it again.

    With sweep.reseed=5 the best three are run again on five fresh seeds each, and judged by those runs alone.
    """
    from runs.sweeps.views.status import Watcher, command_line

    check_config(_config)
    with _errors():
        place = _place(_run)
        home, spec = _existing(place, _config)
        watcher = Watcher(home)
        found = list(watcher.look().best)
        if not found:
            none = "no trial has finished yet" if spec.objectives else _JUDGES_NOTHING
            print(f"sweep {home.id}: {none}")
            return None
        if _config.reseed is not None:
            _tell_place(_run, watcher.definition)
            found = [watcher.study.points()[_judged(_config, _run, place, watcher, spec)]]
        home.close()
        for point in found:
            for objective, value in zip(spec.objectives, point.values, strict=True):
                print(f"trial {point.number}: {objective.name} {value:.6g} in the sweep")
            print(f"  {command_line(watcher.definition, point)}")
        return dict(found[0].parameters)


@ingredient.command(unobserved=True)
def plot(_config: Map, _run: Any) -> None:
    """Draw a sweep (sweep.id=...): one page for the browser, and a picture of each plot."""
    from runs.sweeps.views.plots import draw
    from runs.sweeps.views.status import Watcher

    with _errors():
        place = _place(_run)
        home, spec = _existing(place, _config)
        watcher = Watcher(home)
        folder = place.base / "sweeps" / home.id / "plots"
        for path in draw(watcher.study.optuna, folder, f"{watcher.definition.experiment}, sweep {home.id}", spec):
            print(path)
        home.close()


# ---------------------------------------------------------------------- what the commands have in common


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Turn what is wrong with a sweep into one of the errors that end the command line in one line."""
    from runs.errors import RunsError

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
    """Return where sweeps are kept for a run with these observers."""
    from runs.sweeps.study.place import Place

    given = run.launch_options.get("--file_storage")
    bases = [Path(observer.basedir) for observer in run.recorders if hasattr(observer, "basedir")]
    if given is not None:  # beside what the experiment records to by itself
        bases.insert(0, Path(given))
    databases = [observer.destination for observer in run.recorders if hasattr(observer, "destination")]
    return Place(bases[0] if bases else Path("my_runs"), databases[0] if databases else None)


def _judged(config: Map, run: Any, place: Place, watcher: Watcher, spec: Spec) -> int:
    """Run the best points again on fresh seeds; print what that shows, and return the number of the best."""
    from runs.sweeps.agents.finals import finals
    from runs.work.sharing import divided_threads

    workers = _workers(config)
    means = _means(config, run, place, spec, divided_threads(len(workers)))
    folder = place.base / "sweeps" / watcher.definition.id
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "output.log"
    judgement = finals(place, watcher, means, workers, num_seeds=config.reseed, log=log)
    for finalist in judgement.finalists:
        found = finalist.sample
        width = "" if found.low is None else f", {found.low:.6g} to {found.high:.6g} ({judgement.confidence:.0%})"
        mean = "no value" if found.mean is None else f"mean {found.mean:.6g} of {found.n}{width}"
        p = "" if finalist.p_holm is None else f"; p = {finalist.p_holm:.3g} against the best"
        print(f"{finalist.name}: {mean}{p}")
    print(judgement.text)
    return int(judgement.finalists[0].name.removeprefix("trial "))


def _spec(config: Map) -> Spec:
    from runs.sweeps.spec.spec import read_over, read_spec

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
    """Return an entry that is a mapping, or a text of YAML that holds one."""
    import yaml

    value = to_plain(config[name])
    try:
        found = load_yaml(value) if isinstance(value, str) else value
    except yaml.YAMLError as error:
        raise ConfigError(
            f"sweep.{name}: got {value!r}, which is not valid YAML ({' '.join(str(error).split())}); expected a mapping"
            f" such as {example}"
        ) from error
    if not isinstance(found, dict):
        raise ConfigError(f"sweep.{name}: got {value!r}, expected a mapping such as {example}")
    return found


def _settings(run: Any) -> tuple[str, ...]:
    """Return what stands behind `with`, without the settings of the sweep itself."""
    words = run.meta_info["options"].get("UPDATE") or []
    return tuple(word for word in words if not word.startswith("sweep."))


def _definition(config: Map, run: Any, spec: Spec) -> Definition:
    from runs.sweeps.spec.definition import Definition

    info = run.experiment_info
    options = run.meta_info["options"]
    given = {name: value for name, value in options.items() if name.startswith("--") and name not in _NOT_FOR_TRIALS}
    words = [
        name if value is True else f"{name}={value}" for name, value in given.items() if value not in (None, False)
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


def _program_notes(spec: Spec, definition: Definition) -> list[str]:
    if spec.program is None or Path(spec.program).name == Path(definition.script).name:
        return []
    return [f"program {spec.program} is not used: the runs are those of {definition.script}"]


def _tell_place(run: Any, found: Definition) -> None:
    """Say where runs of a sweep that was started elsewhere have their code from: from here."""
    from runs.sweeps.study.continuing import join

    for note in join(found, run.experiment_info["name"], Path(run.experiment_info["base_dir"])):
        print(f"note: {note}", flush=True)


def _existing(place: Place, config: Map) -> tuple[Home, Spec]:
    from runs.sweeps.spec.spec import read_spec

    if config.id is None:
        raise ConfigError("sweep.id: got none, expected the id of a sweep, which sweep.run prints: with sweep.id=...")
    home = place.home(config.id)
    return home, read_spec(home.definition().spec)


def _check_points(run: Any, spec: Spec, definition: Definition) -> None:
    """Let the experiment check every value that is listed, and both ends of what is not, before the first trial."""
    from runs.sweeps.study.points import representative

    for settings in representative(spec):
        run.check_settings(definition.settings, settings)


def _workers(config: Map) -> list[dict[str, str]]:
    """Return the variables of each agent's runs: a GPU for each, shared by `workers_per_gpu`."""
    from runs.work.sharing import visible_gpus

    gpus = visible_gpus(os.environ)
    if not gpus:
        return [{} for _ in range(config.workers)]
    return [
        {"CUDA_VISIBLE_DEVICES": gpus[index // config.workers_per_gpu % len(gpus)]} for index in range(config.workers)
    ]


def _engine(config: Map) -> Engine:
    from runs.sweeps.agents.engines import Engine

    resources = _mapping(config, "resources", "{cpus: 4, gpus: 1}")
    return Engine(config.engine, config.address, resources, _mapping(config, "slurm", "{partition: gpu}"))


def _means(config: Map, run: Any, place: Place, spec: Spec, environment: Mapping[str, str]) -> Means:
    from runs.sweeps.agents.trials import Means

    deadline = None if spec.budget_s is None else time.time() + spec.budget_s
    database = run.launch_options.get("--mongo_db")
    options = [] if database is None else [f"--mongo_db={database}"]
    if not any(hasattr(observer, "basedir") for observer in run.recorders):
        # A trial has a folder in any case: its state is resumed from there.
        options.append(f"--file_storage={place.base.absolute()}")
    packages = None if config.packages is None else tuple(config.packages)
    return Means(
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
