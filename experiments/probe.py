"""Runs a script once for `sacristan check`: under stock Sacred, or with the lab's classes instead of Sacred's.

It is started as a file, so that a script under stock Sacred meets nothing of the lab. It writes down the config of each
run and how it ends, and records nothing: by default the process ends before the first run starts.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Sacred draws a seed where none is set; both sides get this one.
_SEED = 123456789


def main(words: list[str]) -> None:
    """Run `(sacred | sacristan) (config | run) FILE SCRIPT WORDS`, where a script may be the name of a module."""
    side, extent, outcome, script, *steps = words
    probe = _Probe(Path(outcome), is_started=extent == "run")
    is_file = script.endswith(".py")
    sys.path[0] = str(Path(script).resolve().parent if is_file else Path.cwd())
    try:
        experiment = _stock() if side == "sacred" else _ours()
        probe.watch(experiment)
        sys.argv = [script, *steps]
        if is_file:
            runpy.run_path(script, run_name="__main__")
        else:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
    except Exception as error:
        probe.note_error(error)
        raise
    finally:
        probe.write()


def _stock() -> Any:
    import sacred

    _put_observers({})
    return sacred.Experiment


def _ours() -> Any:
    """Replace Sacred's classes with the lab's, which the script then imports."""
    root = next(folder for folder in Path(__file__).parents if (folder / "sacristan" / "__init__.py").is_file())
    sys.path.append(str(root))
    import sacred

    from sacristan import experiments, ingredients, observers

    for module in ("sacred", "sacred.experiment", "sacred.ingredient"):
        for name, kind in (("Experiment", experiments.Experiment), ("Ingredient", ingredients.Ingredient)):
            if hasattr(sys.modules[module], name):
                setattr(sys.modules[module], name, kind)
    _put_observers({"FileStorageObserver": observers.FileObserver, "MongoObserver": observers.MongoObserver})
    return sacred.Experiment


def _put_observers(replacements: Mapping[str, Any]) -> None:
    """Disable observers that would open files or connections, and replace those that the lab has."""
    sacred_observers = importlib.import_module("sacred.observers")
    base = sacred_observers.RunObserver
    idle = type(
        "IdleObserver", (base,), {"__init__": lambda *_, **__: None, "create": classmethod(lambda c, *_, **__: c())}
    )
    for name in sacred_observers.__all__:
        stock = getattr(sacred_observers, name)
        if stock is base or (not replacements and name in ("FileStorageObserver", "MongoObserver")):
            continue
        for module in (sacred_observers, sys.modules[stock.__module__]):
            setattr(module, name, replacements.get(name, idle))


class _Probe:
    """Writes down what an experiment is given, and how its runs end."""

    def __init__(self, outcome: Path, *, is_started: bool) -> None:
        self._outcome = outcome
        self._is_started = is_started
        self._depth = 0
        self._noted: dict[str, Any] = {"num_experiments": 0, "runs": [], "error": None}

    def watch(self, kind: Any) -> None:
        """Let the experiments of a class report to this probe."""
        initialize: Any = importlib.import_module("sacred.initialize")
        draw, begin, create, run = initialize.get_seed, kind.__init__, kind._create_run, kind.run
        initialize.get_seed = lambda rnd=None: _SEED if rnd is None else draw(rnd)

        def watched_begin(experiment: Any, *args: Any, **options: Any) -> None:
            self._noted["num_experiments"] += 1
            begin(experiment, *args, **options)

        def watched_create(experiment: Any, *args: Any, **options: Any) -> Any:
            return self._created(create(experiment, *args, **options))

        def watched_run(experiment: Any, *args: Any, **options: Any) -> Any:
            self._depth += 1
            try:
                return self._ended(run(experiment, *args, **options))
            except BaseException as error:
                # The lab turns errors of a command line into exit codes.
                cause = error.__context__ if isinstance(error, SystemExit) else error
                if isinstance(cause, Exception):
                    self.note_error(cause)
                raise
            finally:
                self._depth -= 1

        kind.__init__, kind._create_run, kind.run = watched_begin, watched_create, watched_run

    def _created(self, run: Any) -> Any:
        if self._depth == 1:
            self._noted["runs"].append({"config": dict(_flat(run.config)), "result": None})
            self.write()
            if not self._is_started:
                os._exit(0)
        run.unobserved, run.observers = True, []
        return run

    def _ended(self, run: Any) -> Any:
        if self._depth == 1 and run is not None:
            self._noted["runs"][-1]["result"] = canonical(run.result)
            self.write()
        return run

    def note_error(self, error: Exception) -> None:
        if self._noted["error"] is None:
            self._noted["error"] = f"{type(error).__name__}: {' '.join(str(error).split())}"
        self.write()

    def write(self) -> None:
        """Write the notes so far; the script may end the process at any time."""
        self._outcome.write_text(json.dumps(self._noted), encoding="ascii")


def _flat(config: Mapping[Any, Any], prefix: str = "") -> list[tuple[str, str]]:
    entries: list[tuple[str, str]] = []
    for name, value in config.items():
        is_group = isinstance(value, Mapping) and value and all(isinstance(key, str) for key in value)
        entries += _flat(value, f"{prefix}{name}.") if is_group else [(f"{prefix}{name}", canonical(value))]
    # Sacred takes the docstring of a named config for a setting.
    return [entry for entry in entries if entry[0] != "__doc__"]


def canonical(value: Any) -> str:
    """Return a text of a value that is the same for equal numbers, for lists and tuples, and for all kinds of dicts."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(sorted(f'{canonical(key)}: {canonical(item)}' for key, item in value.items()))}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(canonical, value))}]"
    if type(value).__module__ == "numpy" and not getattr(value, "shape", (1,)):
        value = value.item()
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return repr(int(value))
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    try:
        return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    except Exception:
        return f"<{type(value).__qualname__}>"


if __name__ == "__main__":
    main(sys.argv[1:])
