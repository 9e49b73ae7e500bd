"""`sacristan run`: a script as `__main__` of this process, which it cannot tell from a Python of its own, recorded."""

from __future__ import annotations

import argparse
import ast
import atexit
import contextlib
import glob
import importlib.util
import os
import pkgutil
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, NoReturn, cast

from sacristan.configs.nearest import suggestion
from sacristan.configs.packages import entry_points
from sacristan.experiments.scripts.capturing import ENTRY_POINTS, capture, told
from sacristan.experiments.scripts.in_children import place_in_launch
from sacristan.experiments.scripts.loggers import LOGGERS
from sacristan.experiments.scripts.script_run import is_disabled, make_main, make_run
from sacristan.experiments.scripts.session import Session, active_session
from sacristan.ingredients.errors import LabError
from sacristan.observers.errors import ArtifactError, ObserversError

_QUEUING = ("-q", "--queue")
_VALUED = ("--name", "--set", "--keep", "--also", "--priority", "-m")
_USAGE_CODE = 2  # as Python's, for a file that is not there


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `sacristan run`, which come before the script."""
    parser.add_argument("--name", metavar="NAME", help="name of the experiment; by default that of the script")
    parser.add_argument(
        "--set",
        metavar="CONSTANT",
        action="append",
        default=[],
        dest="constants",
        help="take a constant at the top of the script as a setting; may be repeated",
    )
    parser.add_argument(
        "--keep",
        metavar="PATTERN",
        action="append",
        default=[],
        help="keep the files that the script writes there, such as 'out/*.pt', as artifacts; may be repeated",
    )
    parser.add_argument(
        "--also",
        metavar="LIBRARY",
        action="append",
        default=[],
        help="let a logging library do its own work, too, although it would reach a server; may be repeated",
    )
    parser.add_argument(*_QUEUING, action="store_true", help="queue the run, which `sacristan work` starts")
    parser.add_argument("--priority", metavar="NUMBER", type=float, help="with -q: start it before those of less")
    parser.add_argument("-m", metavar="MODULE", dest="module", help="run a module instead of a file, as python -m does")
    parser.add_argument("program", metavar="SCRIPT", nargs="?", help="the script; all words after it are its own")


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of `sacristan run` up to the script, the module or `--`, which is the last, and the others."""
    place = 0
    while place < len(words) and words[place].startswith("-") and words[place] != "-":
        if words[place] in ("-m", "--"):
            place += words[place] == "-m"
            break
        place += 2 if words[place] in _VALUED else 1
    return list(words[: place + 1]), list(words[place + 1 :])


class _Rejected(Exception):  # noqa: N818 - it never leaves this module
    """The words name nothing that can be run; `code` is what Python exits with then."""

    def __init__(self, text: str, code: int = _USAGE_CODE) -> None:
        super().__init__(text)
        self.code = code


def run_program(words: Sequence[str]) -> NoReturn:
    """Run and record what `sacristan run WORDS` names, and exit as it does; of several ranks, the first records."""
    parser = argparse.ArgumentParser(
        prog="sacristan run",
        usage="%(prog)s [options] SCRIPT [ARGUMENTS]\n       %(prog)s [options] -m MODULE [ARGUMENTS]"
        "\n       %(prog)s [options] -- COMMAND",
        description="Run a Python script as it is, and record it.",
    )
    add_options(parser)
    before, args = split_words(words)
    options = parser.parse_args(before)
    if before[-1:] == ["--"]:
        from sacristan.experiments.scripts.launching_command import run_command

        if not args:
            parser.error("got no command after --; write sacristan run -- torchrun train.py")
        run_command(args, before[:-1], options.name)
    if unknown := [library for library in options.also if library not in LOGGERS]:
        _check_libraries(parser, unknown)
    atexit.register(_die_by_interrupt)  # first, so that it is the last to be called
    try:
        program = _program(options, args)
        program.prepare()
        if options.queue:
            _enqueue(options, program, before)
            sys.exit(0)
        rank, _, _ = place_in_launch()
        if rank or is_disabled():
            capture.begin(None, options.also)
        else:
            _begin(options, program, before)
    except _Rejected as error:
        told(f"error: {error}")
        sys.exit(error.code)
    except (LabError, ObserversError) as error:
        told(f"error: {error}")
        sys.exit(1)
    _exit_as(program)


def _check_libraries(parser: argparse.ArgumentParser, libraries: Sequence[str]) -> None:
    """Reject libraries that no adapter of ours or of another package is for."""
    known = ["tensorboard", *LOGGERS, *entry_points(ENTRY_POINTS)]
    for name in libraries:
        if name not in known:
            parser.error(f"--also {name}: there is no such library; {suggestion(name, known)}")


def _program(options: argparse.Namespace, args: Sequence[str]) -> _Program:
    if options.module is not None:
        if options.constants:
            raise _Rejected("--set names constants of a script; got a module (-m)")
        return _Module(options.module, args)
    if options.program is None:
        raise _Rejected("got no script; write sacristan run train.py, or sacristan run -m package.train")
    path = _joined(options.program)
    if Path(path).exists() and (importer := pkgutil.get_importer(path)) is not None:
        if options.constants:
            raise _Rejected(
                f"--set names constants of a script; got {options.program}, which is a folder or an archive"
            )
        return _Folder(options.program, args, importer)
    return _File(options.program, args, options.constants)


def _script_of(program: _Program, words: Sequence[str]) -> dict[str, Any]:
    """Return how a program is started, without the options that queue it."""
    before: list[str] = []
    for word in words[: -len(program.words)]:
        if before[-1:] == ["--priority"]:
            before.pop()
        elif word not in _QUEUING and not word.startswith("--priority="):
            before.append(word)
    return {"kind": program.kind, "program": program.name, "args": program.args, "captured": True, "options": before}


def _settings_of(program: _Program) -> dict[str, Any]:
    """Return the config that is known before the program runs."""
    # Words of the command line stand for settings where nothing else tells them.
    return program.constants if program.names else {"args": program.args} if program.args else {}


def _enqueue(options: argparse.Namespace, program: _Program, words: Sequence[str]) -> None:
    """Record the script as a run that waits for a worker."""
    meta = {} if options.priority is None else {"priority": options.priority}
    script = _script_of(program, words)
    make_run(options.name or program.title, _settings_of(program), script=script, meta=meta).enqueue()
    told("it waits; sacristan work starts it")


def _begin(options: argparse.Namespace, program: _Program, words: Sequence[str]) -> None:
    script = _script_of(program, words)
    session = _begin_session(options, program, script)
    capture.jobs = _Jobs(session, lambda: _begin_session(options, program, dict(script)))


def _begin_session(options: argparse.Namespace, program: _Program, script: Mapping[str, Any]) -> Session:
    folder, start, main = Path.cwd(), time.time(), sys.modules["__main__"]
    session = Session.begin(options.name or program.title, _settings_of(program), script=script)
    capture.begin(session.run, options.also)
    if program.names:

        def take_constants() -> None:  # as the script has changed them, such as by a file that it executes
            values = vars(main)
            session.run.update_config({name: values[name] for name in program.names if name in values})

        capture.before_first_log = take_constants
        session.before_end(take_constants)
    session.before_end(lambda: _keep(options.keep, folder, start, session))
    session.before_end(capture.end)
    return session


class _Jobs:
    """The runs of jobs that a script starts one after another, such as Hydra's multirun; the first one has begun."""

    def __init__(self, session: Session, begin: Callable[[], Session]) -> None:
        self._session, self._begin = session, begin

    def begin(self, args: Sequence[str]) -> None:
        """Have a run for a job, which the script would do alone if it were started with `args`."""
        if self._session.has_ended:
            self._session = self._begin()
        script = self._session.run.meta_info["script"]
        script["args"] = [*args]
        script.pop("number", None)  # it is the only run of such a script

    def end(self, error: BaseException | None) -> None:
        """End the run of the job."""
        self._session.end(error)


def _keep(patterns: Sequence[str], folder: Path, start: float, session: Session) -> None:
    """Keep the files below `folder` that were written since the start, as artifacts with their names there."""
    # Not Path.glob, which takes no absolute patterns.
    found = (path for each in patterns for path in glob.glob(str(folder / each), recursive=True))  # noqa: PTH207
    for path in sorted(map(Path, {*found})):
        if path.is_file() and path.stat().st_mtime >= start - 1:  # file systems round times
            name = str(path.relative_to(folder)) if folder in path.parents else path.name
            try:
                session.run.add_artifact(str(path), name)
            except (ArtifactError, OSError) as error:
                told(f"{path} is not kept: {error}")


# ---------------------------------------------------------------------- what is run


class _File:
    """A script: its path and words, as typed, constants that were settings, and a title for its experiment."""

    kind = "file"
    title: str | None = None

    def __init__(self, path: str, args: Sequence[str], names: Sequence[str]) -> None:
        self.name, self.words, self.args, self.names = path, [path], list(args), list(names)
        self._source = _source_of(path, args)
        self._bytecode = _bytecode_of(path) if _is_compiled(path, self._source) else None
        if names and self._bytecode is not None:
            raise _Rejected(f"--set names constants of a script; got {path}, which is compiled")
        self.constants = _constants(path, self._source, names) if names else {}

    def prepare(self) -> None:
        """Let this process look as `python SCRIPT` does when the script begins."""
        path = _joined(self.name)
        loader = SourceFileLoader if self._bytecode is None else SourcelessFileLoader
        self._main = make_main(__file__=path, __cached__=None, __loader__=loader("__main__", path))
        sys.argv[:] = [self.name, *self.args]
        sys.orig_argv[:] = [sys.executable, *sys.argv]
        if not sys.flags.safe_path:
            sys.path[0] = str(Path(path).resolve().parent)

    def run(self) -> None:
        """Run it."""
        path, code = str(self._main.__file__), self._bytecode
        if code is None:
            with contextlib.suppress(SyntaxError, ValueError):
                code = compile(importlib.util.decode_source(self._source), path, "exec", dont_inherit=True)
        if code is not None:
            exec(code, vars(self._main))
        else:
            _run_file(path, vars(self._main))


class _Module:
    """A module, or the module `__main__` of a package."""

    kind = "module"
    title: str | None = None
    names: Sequence[str] = ()
    constants: dict[str, Any] = {}  # noqa: RUF012 - never written to

    def __init__(self, name: str, args: Sequence[str]) -> None:
        self.name, self.words, self.args = name, ["-m", name], list(args)
        self._notebooks = [Path(word) for word in args if word.endswith(".ipynb")]
        if self._notebooks:
            self.title = self._notebooks[0].stem

    def prepare(self) -> None:
        """Let this process look as `python -m MODULE` does when the module is looked up."""
        if not sys.flags.safe_path:
            sys.path[0] = os.getcwd()  # noqa: PTH109 - as Python does for -m
        spec = _spec_of(self.name)
        make_main(__file__=spec.origin, __spec__=spec)
        sys.argv[:] = ["-m", *self.args]
        sys.orig_argv[:] = [sys.executable, "-m", self.name, *self.args]
        for notebook in self._notebooks:
            from sacristan.observers.provenance.sources import count_as_source

            count_as_source(notebook.absolute())

    def run(self) -> None:
        """Run it, as Python does."""
        runpy._run_module_as_main(self.name)  # type: ignore[attr-defined]  # it is what `python -m` calls


class _Folder(_Module):
    """A folder or an archive with a `__main__.py`."""

    kind = "file"

    def __init__(self, path: str, args: Sequence[str], importer: Any) -> None:
        super().__init__("__main__", args)
        self.name, self.words, self.title = path, [path], Path(path).resolve().stem
        self._path, self._spec = _joined(path), importer.find_spec("__main__")
        if self._spec is None:
            raise _Rejected(f"{path}: there is no __main__.py in it; name a script, or run a package with -m", code=1)

    def prepare(self) -> None:
        """Let this process look as `python FOLDER` does when its `__main__.py` is looked up."""
        if not sys.flags.safe_path:
            sys.path[0] = self._path
        else:
            sys.path.insert(0, self._path)
        # The file in an archive is none; the archive is the source then.
        make_main(__file__=self._spec.origin if Path(self._spec.origin).exists() else self._path, __spec__=self._spec)
        sys.argv[:] = [self.name, *self.args]
        sys.orig_argv[:] = [sys.executable, *sys.argv]

    def run(self) -> None:
        """Run it, as Python does."""
        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]  # as above


_Program = _File | _Module


def _joined(path: str) -> str:
    """Return a path behind the working folder as Python does for `__file__`, which leaves `./` in it."""
    return os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118


def _is_compiled(path: str, source: bytes) -> bool:
    """Return whether a file is bytecode, by its name or its content, as Python tells."""
    return path.endswith(".pyc") or source.startswith(importlib.util.MAGIC_NUMBER)


def _bytecode_of(path: str) -> CodeType:
    """Return the code of a compiled script; reject that of another Python."""
    try:
        return cast(CodeType, SourcelessFileLoader("__main__", _joined(path)).get_code("__main__"))
    except (ImportError, EOFError, ValueError, TypeError):
        version = ".".join(map(str, sys.version_info[:2]))
        raise _Rejected(f"{path}: this is no bytecode of Python {version}; run its source", code=1) from None


def _run_file(path: str, names: dict[str, Any]) -> None:
    """Let Python's parser of files, whose errors differ from those of `compile`, say what is wrong with a script."""
    import ctypes

    run, libc = ctypes.pythonapi.PyRun_FileExFlags, ctypes.CDLL(None)
    run.restype, libc.fopen.restype = ctypes.py_object, ctypes.c_void_p
    of_file, as_script, closes = os.fsencode(path), 257, 1  # Py_file_input
    opened = ctypes.c_void_p(libc.fopen(of_file, b"rb"))
    if not opened:
        raise FileNotFoundError(path)
    run(opened, of_file, as_script, ctypes.py_object(names), ctypes.py_object(names), closes, None)


def _source_of(path: str, args: Sequence[str]) -> bytes:
    """Return the source of a script; reject what is none."""
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        known = [str(each) for each in Path(path).parent.glob("*.py")]
        hint = "give the path of a script"
        if isinstance(error, FileNotFoundError):
            hint = _hint_for_program(path, args) or (suggestion(path, known) if known else hint)
        raise _Rejected(f"{path}: {error.strerror}; {hint}") from None
    if Path(path).suffix != ".py" and not _is_compiled(path, source):
        try:
            compile(source, path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            text = f"{path}: this is no Python script; for another program, write sacristan run -- {path}"
            raise _Rejected(text, code=1) from None
    return source


def _hint_for_program(name: str, args: Sequence[str]) -> str | None:
    """Return what to write for a program instead of a script; None if the name is that of none."""
    import shutil

    if name == "-":
        return "code from the standard input is not recorded; put it into a file"
    if shutil.which(name) is None:
        return None
    if name.startswith("python"):
        return f"leave it out: sacristan run {' '.join(args) or 'train.py'}"
    return f"for a program, write sacristan run -- {name} ..."


def _constants(path: str, source: bytes, names: Sequence[str]) -> dict[str, Any]:
    """Return the values of constants at the top of a script, without those that are computed."""
    found: dict[str, Any] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    found[target.id] = node.value
    values = {}
    for name in names:
        if name not in found:
            raise _Rejected(f"--set {name}: {path} sets no such name at its top; {suggestion(name, found)}")
        with contextlib.suppress(ValueError):  # it is computed when the script runs
            values[name] = ast.literal_eval(found[name])
    return values


def _spec_of(name: str) -> ModuleSpec:
    """Return the spec of a module without importing the packages that it is in."""
    top, *rest = name.split(".")
    spec = importlib.util.find_spec(top) if top else None
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            break
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations)
    else:
        if spec is not None and spec.submodule_search_locations is not None:
            spec = PathFinder.find_spec(f"{name}.__main__", spec.submodule_search_locations)
        if spec is not None and spec.origin is not None:
            return spec
    raise _Rejected(f"-m {name}: there is no such module that can be run; for a file, leave out -m")


# ---------------------------------------------------------------------- how it ends

_was_interrupted = False


def _exit_as(program: _Program) -> NoReturn:
    """Run a program, and exit as Python does after it; its run ends when the process has no more code to run."""
    global _was_interrupted
    code: Any = None
    try:
        program.run()
    except SystemExit as error:
        _note_ending(error)
        raise
    except BaseException as error:
        _note_ending(error)
        _was_interrupted = isinstance(error, KeyboardInterrupt)
        _report(error)
        code = 1
    else:
        _note_ending(None)
    raise SystemExit(code)


def _note_ending(error: BaseException | None) -> None:
    session = active_session()
    if session is not None:
        session.note_ending(error)


def _report(error: BaseException) -> None:
    """Print an error as Python does, without the frames of this module."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    sys.last_exc = error  # type: ignore[attr-defined,unused-ignore]  # from Python 3.12 on
    for stream in (sys.stderr, sys.stdout):
        with contextlib.suppress(Exception):
            stream.flush()
    try:
        sys.excepthook(type(error), error, trace)
    except Exception:
        print("Error in sys.excepthook:", file=sys.stderr)  # noqa: T201 - as Python does
        traceback.print_exc()
        print("\nOriginal exception was:", file=sys.stderr)  # noqa: T201
        sys.__excepthook__(type(error), error, trace)


def _die_by_interrupt() -> None:
    """End the process by SIGINT after an uncaught Ctrl-C, as Python does, so that a shell sees it."""
    if _was_interrupted:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
