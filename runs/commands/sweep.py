"""`sweep`: try settings of a script, one recorded run for each, and find the best ones."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacristan.runs.commands.terminal import Parser, is_url, number, where_of
from sacristan.runs.errors import SweepError

if TYPE_CHECKING:
    from sacristan.runs.sweeps import Definition
    from sacristan.runs.sweeps.agents import AgentOptions
    from sacristan.runs.sweeps.agents.engines import Engine
    from sacristan.runs.sweeps.spec import Spec
    from sacristan.runs.sweeps.study.home import Place

NO_JSON = "it starts runs; `ls --sweep ID --json` lists them"

_USAGE = """%(prog)s SCRIPT --over '{lr: [1e-4, 1e-3]}' [--metric NAME --goal maximize] [-- WORD ...]
       %(prog)s -m MODULE --over ... [-- WORD ...]
       %(prog)s FILE.yaml [-- WORD ...]
       %(prog)s {status,best,plot,stop,agent} [--id ID]"""
_EPILOG = """A trial is `sacristan run SCRIPT WORD ... --lr=0.0001`. A parameter that is True is given as --name, and
one that is False is left out; to give parameters otherwise, put ${args}, ${args_no_hyphens} or ${args_json} among
the words. The same command again continues a sweep; in place of a script, `status` shows it, `best` shows the best
trial, `plot` draws it, `stop` lets it end, and `agent` works on one that was started elsewhere."""
_POSITIVE = number(int, lambda value: value > 0, "a whole number, at least 1")
_NATURAL = number(int, lambda value: value >= 0, "a whole number of at least 0")


def add_arguments(parser: Parser) -> None:
    """Add the arguments."""
    parser.usage, parser.epilog = _USAGE, _EPILOG
    parser.rest_begins = ("--",)
    parser.add_argument(
        "script",
        nargs="?",
        metavar="SCRIPT",
        help="the script, or a file of W&B that names it; its own words come after --",
    )
    parser.add_argument("-m", dest="module", metavar="MODULE", help="sweep a module, as python -m runs it")
    parser.add_argument("--over", metavar="YAML", help="what to try: lists are values, {min: 1e-4, max: 1e-1} a range")
    parser.add_argument("--spec", type=Path, metavar="FILE", help="search in the format of W&B's sweeps")
    parser.add_argument("--method", default="grid", help="with --over: grid (default), random, bayes, ...")
    parser.add_argument("--metric", metavar="NAME", help="with --over: the objective, such as val/loss.min")
    parser.add_argument("--goal", choices=("minimize", "maximize"), default="minimize", help="default: minimize")
    parser.add_argument("--id", help="name of the sweep; derived from the command by default")
    parser.add_argument("--count", type=_POSITIVE, metavar="N", help="most points to try; default: all of a grid")
    parser.add_argument("--workers", type=_POSITIVE, default=1, metavar="N", help="number of concurrent runs (1)")
    parser.add_argument("--sampler-seed", type=_NATURAL, default=0, metavar="N", help="seed of the search (0)")
    parser.add_argument("--retries", type=_NATURAL, default=3, metavar="N", help="new starts of a killed run (3)")
    help = "modules that are imported once for all runs, separated by commas; by default torch and the like"
    parser.add_argument("--packages", metavar="MODULES", help=help)
    help = "where agents run: this machine (local), a cluster of Ray, or an array job of Slurm"
    parser.add_argument("--engine", choices=("local", "ray", "slurm"), default="local", help=help)
    parser.add_argument("--address", metavar="HOST:PORT", help="with --engine ray: the cluster; by default a new one")
    parser.add_argument("--resources", metavar="YAML", help="of each agent on a cluster: '{cpus: 4, gpus: 1}'")
    parser.add_argument("--slurm", metavar="YAML", help="options of the job: '{partition: gpu, timeout_min: 240}'")
    parser.add_argument("--retry-failed", action="store_true", help="run the failed points of a sweep again")


def main(arguments: argparse.Namespace) -> int:
    """Start or continue a sweep, or show one."""
    place = _place(where_of(arguments))
    if arguments.module is None and arguments.script in _ACTIONS:
        _ACTIONS[arguments.script](place, arguments)
        return 0
    from sacristan.runs.sweeps.agents.commands import run_sweep

    if arguments.spec is None and Path(arguments.script or "").suffix in (".yaml", ".yml"):
        arguments.script, arguments.spec = None, Path(arguments.script)
    spec, engine = _spec(arguments), _engine(arguments)
    definition = _definition(arguments, spec)
    run_sweep(
        place,
        spec,
        definition,
        _agent_options(place, arguments, {}),
        _workers(arguments.workers),
        engine,
        lambda *_: None,  # the script knows its options
        arguments.retry_failed,
    )
    return 0


# ---------------------------------------------------------------------- actions


def _status(place: Place, arguments: argparse.Namespace) -> None:
    from sacristan.runs.sweeps.agents.commands import show_status

    show_status(place, arguments.id)


def _best(place: Place, arguments: argparse.Namespace) -> None:
    from sacristan.runs.sweeps.agents.commands import best_trials

    options = _agent_options(place, arguments, {})
    best_trials(place, _id(place, arguments), "", None, lambda _: options, [])


def _plot(place: Place, arguments: argparse.Namespace) -> None:
    from sacristan.runs.sweeps.agents.commands import plot_sweep

    plot_sweep(place, _id(place, arguments))


def _stop(place: Place, arguments: argparse.Namespace) -> None:
    from sacristan.runs.sweeps.agents.commands import stop_sweep

    stop_sweep(place, _id(place, arguments))


def _agent(place: Place, arguments: argparse.Namespace) -> None:
    from sacristan.runs.sweeps.agents.agent_process import work
    from sacristan.runs.work import divided_threads

    environment = {**divided_threads(arguments.workers), **_workers(arguments.workers)[0]}
    work(place, _id(place, arguments), _agent_options(place, arguments, environment))


_ACTIONS: dict[str, Callable[[Place, argparse.Namespace], None]] = {
    "status": _status,
    "best": _best,
    "plot": _plot,
    "stop": _stop,
    "agent": _agent,
}


# ---------------------------------------------------------------------- what is meant


def _place(where: str) -> Place:
    from sacristan.runs.sweeps.study.home import Place

    return Place(Path("my_runs"), where) if is_url(where) else Place(Path(where))


def _engine(arguments: argparse.Namespace) -> Engine:
    from sacristan.runs.sweeps.agents.engines import Engine

    options = {}
    for name in ("resources", "slurm"):
        text = getattr(arguments, name)
        options[name] = {} if text is None else _yaml(f"--{name}", text)
        if not isinstance(options[name], dict):
            raise SweepError(f"--{name}: got {text!r}, expected values by name, such as '{{cpus: 4}}'")
    engine = Engine(arguments.engine, arguments.address, **options)
    engine.check()
    engine.check_extras()
    return engine


def _yaml(option: str, text: str) -> Any:
    import yaml

    from sacristan.configs.files import load_yaml

    try:
        return load_yaml(text)
    except yaml.YAMLError as error:
        why = " ".join(str(error).split())
        raise SweepError(f"{option}: got {text!r}, which is not valid YAML ({why})") from error


def _spec(arguments: argparse.Namespace) -> Spec:
    from sacristan.runs.sweeps.spec import read_over, read_spec

    if arguments.spec is not None and arguments.over is not None:
        raise SweepError(f"got --over and the file {arguments.spec}, expected one of them")
    if arguments.spec is not None:
        return read_spec(arguments.spec)
    if arguments.over is None:
        raise SweepError("got no search space, expected --over '{lr: [1e-4, 1e-3]}' or --spec FILE")
    over = _yaml("--over", arguments.over)
    metric = {"name": arguments.metric, "goal": arguments.goal} if arguments.metric else None
    return read_over(over, method=arguments.method, metric=metric)


def _definition(arguments: argparse.Namespace, spec: Spec) -> Definition:
    from sacristan.runs.sweeps import Definition, with_macro

    path = _script(arguments, spec.program)
    words = tuple(with_macro(arguments.rest[1:], spec.document))
    name = path.parent.name if path.name == "__main__.py" else path.stem
    seed = arguments.sampler_seed
    return Definition(
        id=arguments.id or Definition.id_of(name, spec.document, words, seed),
        experiment=name,
        spec=spec.document,
        script=path.name,
        module=arguments.module or "",
        base=str(path.parent),
        cwd=str(Path.cwd()),
        settings=words,
        options=(),
        seed=seed,
        count=arguments.count,
        storage="",
        created=datetime.now(UTC).isoformat(),
        is_script=True,
    )


def _script(arguments: argparse.Namespace, program: str | None) -> Path:
    """Return the file of the script or module; without one, the script is the `program` of the spec."""
    script = program if arguments.script is None and arguments.module is None else arguments.script
    if (script is None) == (arguments.module is None):
        got = "neither" if script is None else "both"
        raise SweepError(f"got {got} of a script and -m MODULE, expected one: sacristan sweep train.py --over ...")
    if arguments.module is None:
        path = Path(script or "")
        if not path.is_file():
            raise SweepError(f"{path}: there is no such script; expected one, or one of: {', '.join(_ACTIONS)}")
        return path.absolute()
    parts = Path(*arguments.module.split(".")).absolute()
    for path in (parts / "__main__.py", parts.with_suffix(".py")):
        if path.is_file():
            return path
    raise SweepError(f"-m {arguments.module}: there is no such module below this folder; give the path of a script")


def _id(place: Place, arguments: argparse.Namespace) -> str:
    """Return the id of the sweep that is meant: without --id, of the only one."""
    if arguments.id is not None:
        return str(arguments.id)
    ids = place.ids()
    if len(ids) != 1:
        raise SweepError(f"got no --id, expected one of {len(ids)} sweeps; sacristan sweep status lists them")
    return ids[0]


def _workers(num: int) -> list[dict[str, str]]:
    """Return the variables of each agent's runs: a GPU for each, as far as there are enough."""
    from sacristan.runs.work import visible_gpus

    gpus = visible_gpus(os.environ)
    return [{"CUDA_VISIBLE_DEVICES": gpus[index % len(gpus)]} if gpus else {} for index in range(num)]


def _agent_options(place: Place, arguments: argparse.Namespace, environment: Mapping[str, str]) -> AgentOptions:
    from sacristan.runs.sweeps.agents import AgentOptions

    is_observed = place.store and not place.copies_runs
    store = {"SACRISTAN_STORE": place.store if is_observed else str(place.base.absolute())}
    packages = None if arguments.packages is None else tuple(filter(None, arguments.packages.split(",")))
    variables = {**store, **environment}
    return AgentOptions(place.base, environment=variables, packages=packages, retries=arguments.retries)
