"""Cost of a trial of a sweep above the trial itself, beside Optuna, joblib and Ray; and how far a study scales.

    python benchmarks/sweeps.py [overhead] [workers] [methods] [scale] [--trials 40] [--agents 40]

`overhead`: milliseconds a trial. Of the lab the trial itself is the same recorded run, forked from the same warm Python
without a sweep; the rows alternate. Of the others it is a function that does nothing.
`workers`: trials a second of two agents against one, each trial computing on one thread for a second.
`methods`: bayes against random on the digits, 30 trials, 5 seeds.
`scale`: agents that only ask and tell, on one study in MongoDB, each a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LAB = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(LAB))

from sacristan.observers.mongo import Destination
from sacristan.runs.rerun.launching import Launch
from sacristan.runs.sweeps import Definition
from sacristan.runs.sweeps.agents import AgentOptions
from sacristan.runs.sweeps.agents.agent_process import Agent
from sacristan.runs.sweeps.agents.engines import Engine
from sacristan.runs.sweeps.spec import read_spec
from sacristan.runs.sweeps.study import Study
from sacristan.runs.sweeps.study.home import Place
from sacristan.runs.work.warm import WarmPython

PACKAGES = ("numpy", "sacred", "sacred.observers", "sacred.commandline_options")
TINY = f"""
import sys, time
sys.path.insert(0, {str(LAB)!r})
from sacristan.experiments import Experiment

ex = Experiment("tiny", system_metrics_s=None)

@ex.config
def config():
    # what is varied
    x = 0.0
    # seconds to compute for
    seconds = 0.0

@ex.automain
def main(x, seconds, _run):
    end = time.process_time() + seconds
    while time.process_time() < end:
        sum(range(1000))
    _run.log_scalar("loss", x, 0)
    return x
"""


def sweep_of(folder: Path, place: Place, id: str, spec: dict[str, Any], **entries: Any) -> Definition:
    """Return a sweep over the tiny experiment."""
    given = {"settings": (), "options": (), "seed": 0, "count": None, "storage": "", "created": "", "module": ""}
    where = {"script": "tiny.py", "base": str(folder), "cwd": str(folder), "experiment": "tiny"}
    definition = Definition(id=id, spec=read_spec(spec).document, **{**given, **where, **entries})
    with contextlib.closing(place.home(id)) as home:
        home.create(definition)
    return definition


def random_spec(trials: int) -> dict[str, Any]:
    """Return a random search over one parameter."""
    parameters = {"x": {"min": 0.0, "max": 1.0}}
    return {"method": "random", "metric": {"name": "loss"}, "parameters": parameters, "run_cap": trials}


@contextlib.contextmanager
def laboratory() -> Iterator[Path]:
    """Give a folder with the tiny experiment, on a disk."""
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        (Path(folder) / "tiny.py").write_text(TINY)
        yield Path(folder)


# ---------------------------------------------------------------------- overhead


def alone(folder: Path, warm: WarmPython, log: int, trials: int) -> float:
    """Return the milliseconds of a recorded run, forked from a warm Python, without a sweep."""
    start = time.perf_counter()
    for number in range(trials):
        command = (sys.executable, str(folder / "tiny.py"), "with", f"x={number / trials}")
        with warm.start(Launch(command, folder, {}, ()), output=log) as job:
            job.wait()
    return (time.perf_counter() - start) / trials * 1e3


def by_agent(folder: Path, warm: WarmPython, log: int, trials: int, place: Place, id: str) -> float:
    """Return the milliseconds of a trial of one of our agents."""
    sweep_of(folder, place, id, random_spec(trials))
    with contextlib.closing(place.home(id)) as home:
        agent = Agent(home, AgentOptions(place.base, output=log), warm)
        start = time.perf_counter()
        agent.run()
        return (time.perf_counter() - start) / trials * 1e3


def inline_optuna(folder: Path, trials: int) -> float:
    """Return the milliseconds of a trial of Optuna with its journal file."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    backend = JournalFileBackend(str(folder / f"optuna-{time.time_ns()}.journal"))
    study = optuna.create_study(storage=JournalStorage(backend), sampler=optuna.samplers.RandomSampler(0))
    start = time.perf_counter()
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), trials)
    return (time.perf_counter() - start) / trials * 1e3


def joblib_loky(trials: int) -> float:
    """Return the milliseconds of a task of joblib's processes, which are reused."""
    from joblib import Parallel, delayed

    with Parallel(n_jobs=2, backend="loky") as pool:
        pool(delayed(abs)(number) for number in range(4))
        start = time.perf_counter()
        pool(delayed(abs)(number) for number in range(trials))
        return (time.perf_counter() - start) / trials * 1e3


def by_engine(folder: Path, name: str, trials: int) -> float:
    """Return the milliseconds of a trial of an agent that is a process of its own, supervised, and perhaps an actor.

    The difference between two sweeps, of which one has three times as many trials, leaves out the agent's start.
    """
    place = Place(folder / "my_runs")
    means, took = AgentOptions(place.base, packages=PACKAGES), []
    for number in (trials, 3 * trials):
        definition = sweep_of(folder, place, f"{name}-{time.time_ns()}", random_spec(number))
        start = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            Engine(name).run(place, definition, means, [{}], folder / "engine.log")
        took.append(time.perf_counter() - start)
    return (took[1] - took[0]) / (2 * trials) * 1e3


@contextlib.contextmanager
def started_ray() -> Iterator[None]:
    """Start Ray on this machine, with ports that nobody else reaches."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        quiet = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
        ray.init("local", num_cpus=2, _temp_dir=folder, **quiet)
        try:
            yield
        finally:
            ray.shutdown()


def ray_tune(folder: Path, trials: int, *, reuse: bool) -> float:
    """Return the milliseconds of a trial of Ray Tune, one at a time."""
    from ray import tune

    class Nothing(tune.Trainable):
        def setup(self, config):
            pass

        def step(self):
            return {"loss": 0.0, "done": True}

        def reset_config(self, new_config):
            return True

        def save_checkpoint(self, folder):
            return None

    config = tune.TuneConfig(num_samples=trials, max_concurrent_trials=1, reuse_actors=reuse)
    run_config = tune.RunConfig(storage_path=str(folder / "tune"), verbose=0)
    start = time.perf_counter()
    tuner = tune.Tuner(Nothing, param_space={"x": tune.uniform(0, 1)}, tune_config=config, run_config=run_config)
    with contextlib.redirect_stdout(io.StringIO()):
        tuner.fit()
    return (time.perf_counter() - start) / trials * 1e3


def overhead(trials: int, url: str | None) -> None:
    """Print what a trial costs above the trial itself."""
    with laboratory() as folder, WarmPython(PACKAGES) as warm, (folder / "log").open("wb") as stream:
        log = stream.fileno()
        places = {"agent, folder": Place(folder / "my_runs")}
        if url is not None:
            places["agent, MongoDB"] = Place(folder / "my_runs", Destination(url, f"bench_{os.getpid()}").address)
        alone(folder, warm, log, 5)
        base, took = [], {name: [] for name in places}
        for block in range(5):
            base.append(alone(folder, warm, log, trials))
            for name, place in places.items():
                took[name].append(by_agent(folder, warm, log, trials, place, f"{name[7:].lower()}-{block}"))
        print(f"{'recorded run, forked warm':<28}{statistics.median(base):>10.1f} ms")
        for name, times in took.items():
            above = statistics.median(mine - its for mine, its in zip(times, base, strict=True))
            print(f"{name:<28}{statistics.median(times):>10.1f} ms{above:>10.1f} ms above")
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        print(f"{'a fresh process with torch':<28}{(time.perf_counter() - start) * 1e3:>10.1f} ms")
        print(f"{'Optuna inline, journal':<28}{inline_optuna(folder, trials):>10.1f} ms")
    if importlib.util.find_spec("joblib"):
        print(f"{'joblib, loky':<28}{joblib_loky(max(trials, 200)):>10.1f} ms")
    if not importlib.util.find_spec("ray"):
        print("ray is not installed, left out")
        return
    with laboratory() as folder, started_ray():
        rows = {"local": [], "ray": []}
        for _ in range(3):
            for name, times in rows.items():
                times.append(by_engine(folder, name, max(trials // 4, 5)))
        above = statistics.median(ray - local for local, ray in zip(*rows.values(), strict=True))
        print(f"{'agent, a process':<28}{statistics.median(rows['local']):>10.1f} ms")
        print(f"{'agent, an actor of Ray':<28}{statistics.median(rows['ray']):>10.1f} ms{above:>10.1f} ms above that")
        print(f"{'Ray Tune':<28}{ray_tune(folder, 10, reuse=False):>10.1f} ms")
        print(f"{'Ray Tune, actors reused':<28}{ray_tune(folder, trials, reuse=True):>10.1f} ms")


# ---------------------------------------------------------------------- workers


BUSY = """
import sys, time
for _ in range(int(sys.argv[1])):
    until = time.thread_time() + 1.0
    while time.thread_time() < until:
        pass
"""


def plain_processes(number: int, trials: int) -> float:
    """Return the trials a second of so many Python processes that do nothing but compute."""
    start = time.perf_counter()
    command = [sys.executable, "-c", BUSY, str(trials // number)]
    processes = [subprocess.Popen(command) for _ in range(number)]
    for process in processes:
        process.wait()
    return trials / (time.perf_counter() - start)


def workers(trials: int) -> None:
    """Print how many trials a second two agents do, against one, and two plain processes against one."""
    from sacristan.runs.sweeps.agents.engines import supervise
    from sacristan.runs.work import divided_threads

    with laboratory() as folder:
        place = Place(folder / "my_runs")
        rates: dict[str, list[float]] = {"agents": [], "plain processes": []}
        for number in (1, 2):
            sweep_of(folder, place, f"w{number}", random_spec(trials), settings=("seconds=1.0",))
            means = AgentOptions(place.base, environment=divided_threads(number), packages=PACKAGES)
            log = folder / "log"
            start = time.perf_counter()
            supervise(place, f"w{number}", means, [{}] * number, log)
            rates["agents"].append(trials / (time.perf_counter() - start))
            rates["plain processes"].append(plain_processes(number, trials))
        for name, (one, two) in rates.items():
            print(f"{name:<28}{one:>8.2f} and {two:.2f} trials a second, {two / one:.2f} times as many")


# ---------------------------------------------------------------------- methods


def methods(seeds: int = 5, trials: int = 30) -> None:
    """Print what bayes and random search reach on the digits."""
    parameters = {
        "optimizer.lr": {"distribution": "log_uniform_values", "min": 1e-5, "max": 1.0},
        "data.batch_size": {"values": [16, 32, 64, 128]},
        "model.options.dropout": {"min": 0.0, "max": 0.9},
    }
    reached: dict[str, list[float]] = {"random": [], "bayes": []}
    with laboratory() as folder, WarmPython() as warm, (folder / "log").open("wb") as stream:
        place = Place(folder / "my_runs")
        for seed in range(seeds):
            for method, found in reached.items():
                spec = {"method": method, "metric": {"name": "val/loss.min"}, "parameters": parameters}
                id = f"{method}-{seed}"
                where = {
                    "script": "exp.py",
                    "base": str(LAB),
                    "settings": ("epochs=3", "data.limit=600", "model.name=mlp"),
                }
                sweep_of(folder, place, id, {**spec, "run_cap": trials}, seed=seed, **where)
                with contextlib.closing(place.home(id)) as home:
                    agent = Agent(home, AgentOptions(place.base, output=stream.fileno()), warm)
                    agent.run()
                    points = Study(home, home.definition(), read_spec(home.definition().spec)).points()
                found.append(min(point.values[0] for point in points.values() if point.values))
                print(f"seed {seed}, {method:<8} best val/loss {found[-1]:.4f}", flush=True)
    for method, found in reached.items():
        print(f"{method:<8} mean of {seeds} seeds {statistics.fmean(found):.4f}")


# ---------------------------------------------------------------------- scale


def ask_and_tell(address: str, asked: Any, told: Any) -> None:
    """Take points of a study, as an agent does, until none is left, and note how long asking and telling took."""
    place = Place(Path(tempfile.gettempdir()) / f"sweeps-{os.getpid()}", address)
    asks, tells = [], []
    try:
        with contextlib.closing(place.home("scale")) as home:
            agent = Agent(home, AgentOptions(place.base), None)  # which starts nothing
            while True:
                start = time.perf_counter()
                taken = agent.next()
                if taken is None:
                    break
                asks.append(time.perf_counter() - start)
                start = time.perf_counter()
                agent.study.finish(taken[0].number, "COMPLETE", [taken[0].parameters["x"]])
                tells.append(time.perf_counter() - start)
            home.leave(agent.name)
    finally:
        asked.put(asks)
        told.put(tells)


def scale(url: str, agents: int, trials: int) -> None:
    """Print how long agents wait for one study in MongoDB, and how large it is."""
    import optuna  # noqa: F401, once for all agents, which are forked
    import pymongo

    name = f"bench_scale_{os.getpid()}"
    address = Destination(url, name).address
    with tempfile.TemporaryDirectory() as folder:
        sweep_of(Path(folder), Place(Path(folder), address), "scale", random_spec(trials))
    context = multiprocessing.get_context("fork")
    asked, told = context.Queue(), context.Queue()
    processes = [context.Process(target=ask_and_tell, args=(address, asked, told)) for _ in range(agents)]
    start = time.perf_counter()
    for process in processes:
        process.start()
        time.sleep(0.05)  # 300 Pythons that connect at once are more than two cores take
    times = [[one for _ in processes for one in queue.get()] for queue in (asked, told)]
    for process in processes:
        process.join()
    took = time.perf_counter() - start
    with pymongo.MongoClient(url) as client:
        stats = client[name].command("collStats", "sweep_trials")
        count, size = stats["count"], stats["size"]
        client.drop_database(name)
    print(f"{agents} agents, {trials} trials in {took:.0f} s, {trials / took:.0f} a second")
    for what, found in zip(("ask", "tell"), times, strict=True):
        ordered = sorted(found)
        middle, high = (ordered[int(len(ordered) * share)] * 1e3 for share in (0.5, 0.95))
        print(f"{what:<5} median {middle:.1f} ms, 95 % {high:.1f} ms")
    print(f"trials: {count:,} documents, {size / 2**20:.1f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["overhead", "workers", "methods", "scale"])
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--agents", type=int, default=40)
    parser.add_argument("--scale-trials", type=int, default=20_000)
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with contextlib.ExitStack() as stack:
        url = None
        if {"overhead", "scale"} & set(options.parts):
            from sacristan.runs.work.mongod import Mongod

            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=Path.home())))
            url = stack.enter_context(Mongod(folder)).url
        if "overhead" in options.parts:
            overhead(options.trials, url)
        if "workers" in options.parts:
            workers(options.trials)
        if "methods" in options.parts:
            methods()
        if "scale" in options.parts and url is not None:
            scale(url, options.agents, options.scale_trials)


if __name__ == "__main__":
    main()
