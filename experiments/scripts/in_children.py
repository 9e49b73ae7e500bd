"""The `sitecustomize` of the Python processes that `sacristan run -- COMMAND` starts: the first one records itself.

It is copied to a folder on their PYTHONPATH, and imports the standard library alone. A process that starts a script
becomes `sacristan run` of that script, under the same id, which records nothing in later ranks. Launchers stay as they
are, and so do processes that start while another one records.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys

# What a process needs to know: the options of `sacristan run`, its folder, and the PYTHONPATH that was there before.
VARIABLE = "SACRISTAN_RECORD_CHILD"
# The file in that folder which names the process that records, and the one which is there if a later rank has started.
CLAIM, LATER_RANK = "recorder", "later rank"
# Variables of the rank and the number of processes, by launcher; torchrun's are those of most others.
_OF_LAUNCHES = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
}
# Programs in Python that start others, which do the work.
_LAUNCHERS = (
    *("torchrun", "accelerate", "deepspeed", "horovodrun", "sacristan", "runs", "uv", "poetry", "pip", "conda"),
    *("jupyter", "jupyter-execute", "jupyter-nbconvert", "papermill"),
)
_LAUNCHING_MODULES = (
    *("torch.distributed", "accelerate", "deepspeed", "sacristan", "pip", "multiprocessing", "joblib"),
    *("jupyter", "nbconvert", "papermill", "ipykernel"),
)


def become_recorded() -> None:
    """Replace this process by one that records its script, if it is the one to do that."""
    told = json.loads(os.environ[VARIABLE])
    words = _script_words()
    if words is None:
        return
    import importlib.util

    spec = importlib.util.find_spec("sacristan")
    if spec is None or spec.origin is None:  # a Python of another environment
        return
    rank, _, _ = place_in_launch()
    if rank:
        with contextlib.suppress(OSError), open(os.path.join(told["folder"], LATER_RANK), "w"):  # noqa: PTH118, PTH123
            pass
    elif not _claim(os.path.join(told["folder"], CLAIM)):  # noqa: PTH118
        return
    import subprocess

    environment = {name: value for name, value in os.environ.items() if name not in (VARIABLE, "PYTHONPATH")}
    if told["path"] is not None:
        environment["PYTHONPATH"] = told["path"]
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing does
    # Not by -m, which would search the working folder, where a module may have the name of one of Python's.
    program = [sys.executable, *flags, os.path.join(os.path.dirname(spec.origin), "__main__.py"), "run"]  # noqa: PTH118, PTH120
    os.execve(sys.executable, [*program, *told["options"], *words], environment)


def place_in_launch() -> tuple[int, int, str]:
    """Return the rank of this process, the number of those launched with it, and the launcher: 0, 1, "" without one.

    Tasks of srun may as well be separate runs, such as one per seed; those that train together need MASTER_ADDR.
    """
    for launcher, names in _OF_LAUNCHES.items():
        rank, size = (os.environ.get(name, "") for name in names)
        if launcher == "srun" and not os.environ.get("MASTER_ADDR"):
            continue
        if rank.isdecimal() and size.isdecimal() and int(rank) < int(size):
            return int(rank), int(size), launcher
    return 0, 1, ""


def _script_words() -> list[str] | None:
    """Return the script that this process was started with, and its words; None if it is none to record."""
    program, args = sys.argv[0], sys.argv[1:]
    if program == "-m":
        head = sys.orig_argv[: len(sys.orig_argv) - len(args)]
        module = head[-1].removeprefix("-m")
        is_launcher = module.startswith(_LAUNCHING_MODULES)
        return None if is_launcher else ["-m", module, *args]
    is_launcher = os.path.basename(program) in _LAUNCHERS  # noqa: PTH119 - pathlib is not loaded yet
    return None if is_launcher or not os.path.isfile(program) else [program, *args]  # noqa: PTH113


def _claim(path: str) -> bool:
    """Return whether this process is the one to record, because no other does now."""
    for _ in range(2):
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            with open(path) as stream:  # noqa: PTH123
                text = stream.read()
            if not text or _lives(int(text)):
                return False
            os.unlink(path)  # noqa: PTH108
        except OSError:  # the command is over
            return False
        else:
            os.write(descriptor, str(os.getpid()).encode())
            os.close(descriptor)
            return True
    return False


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _import_next() -> None:
    """Import the `sitecustomize` that this one stands before, if there is any."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [folder for folder in sys.path if folder != here]
    own = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401 - of the user's environment
    except ModuleNotFoundError:
        sys.modules["sitecustomize"] = own  # which the import expects to find


if __name__ == "sitecustomize":
    if VARIABLE in os.environ:
        become_recorded()
    _import_next()
