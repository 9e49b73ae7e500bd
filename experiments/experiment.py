"""`Experiment`: Sacred's, which refuses to run after a typo and hands config over as `Map`."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import sacred
from sacred import commands as sacred_commands
from sacred import experiment as sacred_experiment
from sacred.arg_parser import get_config_updates
from sacred.commandline_options import enforce_clean_option
from sacred.dependencies import gather_sources_and_dependencies

from configs import collection, to_plain
from configs.printing import OutputError, checked_output
from configs.standard_streams import open_standard_streams
from experiments.running import commands, strictness
from experiments.running.aliases import Aliases
from experiments.running.command_line import beat_interval_s, check_command_line, split_shown_command
from experiments.running.failures import format_failure
from experiments.running.lab_run import LabRun
from experiments.running.main_file import base_dir_of, module_of
from experiments.running.one_run import check_nested, given_back, only_run
from experiments.running.origins import grouped, origins
from experiments.running.ranks import check_same_config, meet, publish_config
from experiments.running.replaying import config_of_bundle
from experiments.running.resuming import folder_to_resume, folder_to_start, forget_folders
from experiments.running.signals import Terminated
from experiments.running.system_metrics import check_interval
from experiments.running.terminal import remember_terminal
from experiments.running.trial import Pruned, take_trial
from ingredients.config.files import guard_sacred
from ingredients.config.ingredient import LabFunctions, look_once_at_sources, make_writable
from ingredients.config.named_values import gathering
from ingredients.config.nearest import nearest
from ingredients.config.scope import lenient
from ingredients.errors import ConfigError, LabError
from ingredients.ranks.notices import Notices
from ingredients.ranks.world import World, world_of
from observers.errors import ObserversError
from observers.file.observer import FileObserver
from observers.options import environment_option, file_option, mongo_option, reads_option, tensorboard_option
from observers.provenance import sources_and_git as provenance
from observers.record.identity import CHECK_VARIABLE
from observers.record.redaction import redact

__all__ = ["Experiment"]

# What stands in the place of Sacred's commands, made for the experiment.
_OURS: dict[str, Callable[[sacred.Experiment], Callable]] = {
    "print_config": lambda experiment: commands.print_config,
    "save_config": lambda experiment: commands.save_config,
    "print_named_configs": commands.make_print_named_configs,
}


# Command-line options that the lab applies itself, once a run has passed its checks.
_OPTIONS = {
    option.get_flag(): option
    for option in (file_option, mongo_option, tensorboard_option, environment_option, enforce_clean_option)
}


class _Frames:
    """Stands in for the module `inspect` where Sacred looks for the frame that creates an experiment.

    `inspect.stack` reads the source of every frame too, for which it looks at the file of every imported module. And
    Sacred collects sources and packages from the globals of that frame, which is one of this file: it gets a stand-in
    without them, as the lab collects its own.
    """

    @staticmethod
    def stack() -> list[tuple[Any]]:
        ours = types.SimpleNamespace(f_globals={"__name__": __name__, "__file__": __file__})
        frames = [frame for frame, _ in traceback.walk_stack(sys._getframe(1))]
        return [(ours if frame.f_globals is globals() else frame,) for frame in frames]


class Experiment(LabFunctions, sacred.Experiment):
    """Sacred's Experiment, strict: a setting that does not exist or does not fit stops the run before it starts.

    Captured functions, commands and hooks receive `_config` and every dict from the config as a `configs.Map`, and
    `_run` as a `LabRun`. `config`, `named_config`, `capture`, `command`, `main`, `automain` and the hooks are Sacred's;
    see `ingredients.config.scope` for what a config scope may say.

    Errors of the lab (`LabError`) end the command line with one message and exit code 1; Ctrl-C ends it with exit code
    130, SIGTERM with 143, and any signal with 75 where a training has saved its state and can be resumed. A trial that
    its sweep prunes ends it with 0.

    Runs are recorded in `my_runs/` below the working folder. Observers that are attached to the experiment, or `-F
    FOLDER`, take the place of that; `-m` adds a database to it, and `-u` records nothing.

    Args:
        name: Its name; by default that of the file that creates it.
        ingredients: What it is composed of.
        record_to: Folder to record runs in where nothing else is said; None records none.
        system_metrics_s: Seconds between samples of CPU, memory, disk, network and GPUs in recorded runs, at least 1;
            None takes none.
        **options: Further arguments of `sacred.Experiment`, such as `interactive=True` in a notebook.

    Raises:
        ConfigError: If `system_metrics_s` is less than a second.

    Example:
        ex = Experiment("mine", ingredients=[optimizer.ingredient], interactive=True)
        ex.alias(lr="optimizer.lr")

        @ex.config
        def config(optimizer):
            # learning rate; the same setting as optimizer.lr
            lr = optimizer["lr"]
            # passes over the data
            epochs = 3

        @ex.main
        def main(epochs, optimizer):
            return epochs * optimizer.lr

        assert ex.run(config_updates={"lr": 0.5}).result == 1.5
    """

    current_run: LabRun | None  # type: ignore[assignment]  # Sacred's begins with None, and has a run from then on

    def __init__(
        self,
        name: str | None = None,
        ingredients: Sequence[sacred.Ingredient] = (),
        *,
        record_to: str | Path | None = "my_runs",
        system_metrics_s: float | None = 15.0,
        **options: Any,
    ) -> None:
        caller = sys._getframe(1).f_globals
        self._file = mainfile = caller.get("__file__")
        if name is None and mainfile is not None and not options.get("interactive"):
            name = Path(mainfile).stem
        # Sacred's look at git raises in a repository without a commit, and runs git once for every source.
        options.setdefault("save_git_info", False)
        self._module = module_of(caller)
        options.setdefault("base_dir", base_dir_of(mainfile, self._module))
        ours = (tensorboard_option, environment_option, reads_option)
        options["additional_cli_options"] = [*(options.get("additional_cli_options") or ()), *ours]
        guard_sacred()
        look_once_at_sources()
        sacred_experiment.inspect = _Frames  # type: ignore[assignment]  # it has what Sacred uses of the module
        self._aliases = Aliases()
        self._always: tuple[str, ...] = ()
        self._on_command_line = False
        self._shown_command: str | None = None
        self._world = World()
        self._record_to = record_to
        self._system_metrics_s = check_interval(system_metrics_s)
        super().__init__(name, ingredients, **options)
        self._replay: Any = None
        if "training" in [ingredient.path for ingredient, _ in list(self.traverse_ingredients())]:
            repeat = commands.make_replay(lambda: self.commands[self.default_command]())
            self._replay = self.command(repeat, unobserved=True)
        self.all_cli_options = [_OPTIONS.get(option.get_flag(), option) for option in self.all_cli_options]
        # Sacred took the frame above for the experiment's file; the caller's is meant.
        self.doc = caller.get("__doc__") or ""
        self.mainfile, self.sources, self.dependencies = gather_sources_and_dependencies(
            caller, self.save_git_info, self.base_dir
        )

    @property
    def _config_path(self) -> str:
        return ""

    def command(self, function: Callable | None = None, *args: Any, **options: Any) -> Any:
        """Add a command; see `LabFunctions.command`. `print_config` and `save_config` are the lab's own."""
        if function is not None and function.__module__ == sacred_commands.__name__ and function.__name__ in _OURS:
            function = _OURS[function.__name__](self)
        return super().command(function, *args, **options)

    def gather_commands(self) -> Iterator[tuple[str, Callable]]:
        """Yield name and function of each command that has all the ingredients it needs."""
        found = list(super().gather_commands())
        return ((name, command) for name, command in found if not commands.lacking(self, command))

    def _refuse_lacking(self, cmd_name: str | None) -> None:
        lacking = commands.lacking(self, dict(super().gather_commands()).get(cmd_name))
        if lacking:
            raise ConfigError(
                f"{cmd_name}: this experiment lacks ingredients that the command needs: {', '.join(lacking)}; see the "
                "commands that it offers with: help"
            )

    def always(self, *named_configs: str) -> None:
        """Apply named configs in every run, ahead of those that are asked for: defaults of one's own for ingredients.

        A config scope cannot set entries of an ingredient, because they are computed before it.

        Example:
            @ex.named_config
            def usual():
                training = {"epochs": 5}

            ex.always("usual")
        """
        self._always += named_configs

    def alias(self, **aliases: str) -> None:
        """Let an entry at the root stand for an entry of an ingredient: `ex.alias(lr="optimizer.lr")`.

        Setting either sets both; setting both to different values is refused. The experiment's config scope reads
        the entry from the ingredient: `lr = optimizer["lr"]`.
        """
        self._aliases.targets.update(aliases)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command, by default the main function, and return its `LabRun`; see `sacred.Experiment.run`.

        A run that another one starts on its own thread gets that one's uid as its parent.

        Args:
            *args: The command's name, `config_updates` (nested or with dotted names), `named_configs` (names or
                files), `info`, `meta_info`, `options`.
            **kwargs: The same by name.

        Raises:
            LabError: If the settings do not make sense; before anything is recorded.
            ObserversError: If the run cannot be recorded or resumed.
            ConcurrentRunError: If another thread of this process runs an experiment, or a run starts one that shares
                its observers.
        """
        open_standard_streams()
        collection.pause()  # until the main function begins
        try:
            with only_run(self):
                return super().run(*args, **kwargs)
        except (LabError, ObserversError) as error:
            if self._on_command_line and not self._debugging(kwargs.get("options")):
                self._leave(str(error), 1)
            raise
        except Terminated as end:
            if self._on_command_line:
                self._leave(f"interrupted ({end.signal}){self._way_on(end.step)}", end.code)
            raise
        except Pruned as end:
            if self._on_command_line:
                self._leave(str(end), 0)
            raise
        except KeyboardInterrupt:
            if self._on_command_line:
                self._leave("interrupted (Ctrl-C)", 130)
            raise
        except OutputError as error:
            if self._on_command_line:
                sys.exit(error.code)  # `run_commandline` prints it
            raise
        except Exception as error:
            # Sacred says of its own errors which of them are to be shown without a traceback.
            is_shown = getattr(error, "print_traceback", True) and not getattr(error, "print_usage", False)
            if self._on_command_line and is_shown and not self._debugging(kwargs.get("options")):
                _show(format_failure(error))
                sys.exit(1)
            raise
        finally:
            collection.resume()

    def run_commandline(self, argv: Any = None) -> Any:
        """Run the command line, and return its `LabRun`; see `sacred.Experiment.run_commandline`.

        Args:
            argv: The words, the program first, or all of them in one string; by default `sys.argv`.

        Raises:
            SystemExit: With the exit code, if it does not come to its end.
        """
        self._on_command_line = True
        try:
            with checked_output():
                argv = sys.argv if argv is None else argv
                check_command_line(argv, self.all_cli_options)
                argv, self._shown_command = split_shown_command(argv, self.all_cli_options)
                return super().run_commandline(argv)
        except LabError as error:
            self._leave(str(error), 1)
        except OutputError as error:
            error.tell()
            sys.exit(error.code)
        finally:
            self._on_command_line, self._shown_command = False, None

    def _leave(self, message: str, code: int) -> NoReturn:
        which = f"rank {self._world.rank}: " if self._world.rank else ""
        _show(f"{which}error: {message}" if code == 1 else f"{which}{message}")
        sys.exit(code)

    def _way_on(self, step: int | None) -> str:
        """Return what to say of the state after `step` that was saved; nothing if none was."""
        if step is None:
            return ""
        said = f"; the state after step {step} is saved"
        folder = None if self.current_run is None else self.current_run.folder
        if folder is None:
            return said
        return f"{said}; resume with: python -m runs --store {folder.parent} resume {folder.name}"

    def _check_command(self, cmd_name: str | None) -> str | None:
        if self._shown_command is not None and self._shown_command != cmd_name:
            self._check_command(self._shown_command)
        known = dict(self.gather_commands())
        if cmd_name is None or cmd_name in known:
            return super()._check_command(cmd_name)
        self._refuse_lacking(cmd_name)
        near = nearest(cmd_name, list(known))
        hint = f"did you mean {near}?" if near else f"there are: {', '.join(known)}"
        if cmd_name in dict(self.gather_named_configs()) or Path(cmd_name).is_file():
            hint = f"to use it as a config, write with {cmd_name}"
        shown = cmd_name if cmd_name.isprintable() else repr(cmd_name)  # of a record, it may be anything
        raise ConfigError(f"{shown}: there is no such command; {hint}")

    def _debugging(self, options: Mapping | None) -> bool:
        options = options or {}
        return bool(options.get("--debug") or options.get("--pdb"))

    def _create_run(
        self,
        command_name: str | None = None,
        config_updates: dict | None = None,
        named_configs: Sequence[str] = (),
        info: dict | None = None,
        meta_info: dict | None = None,
        options: dict | None = None,
    ) -> Any:
        self._world = world_of()
        if os.environ.pop(CHECK_VARIABLE, None):
            self._check_start(config_updates or {}, named_configs, force=bool((options or {}).get("--force")))
        self._refuse_lacking(command_name)
        given = self._options_of_rank(options or {})
        trial = take_trial()
        _quieten_torch()
        strictness.check_scopes(self)
        named_configs = (*self._always, *named_configs)
        updates = strictness.nested(config_updates or {})
        if self._replay is not None and self.commands.get(command_name) is self._replay:
            named_configs = (config_of_bundle(updates.get("bundle")), *named_configs)
        force = bool(given.get("--force"))
        strictness.check_updates(self, updates, named_configs, force=force)
        typed = list(updates)
        self._aliases.mirror(updates)
        given_updates = to_plain(updates)

        interval_s = beat_interval_s(given)
        ours = {flag: given[flag] for flag in _OPTIONS if given.get(flag)}
        # Sacred's own check only warns of most of what matters here, so it is switched off for ours, and so are the
        # options that Sacred would take for its own observers.
        without = {**given, "--force": True, **dict.fromkeys(ours)}

        def create() -> Any:
            with lenient(force), gathering(), self._aliases.named_as_typed(typed):
                return super(Experiment, self)._create_run(
                    command_name, updates, named_configs, info, meta_info, without
                )

        run, notices = self._created(create, updates)
        run.force = force
        shown = {flag: redact(value) if isinstance(value, str) else value for flag, value in ours.items()}
        run.meta_info["options"] |= {"--force": force, **shown}
        run.meta_info["config_updates"] = config_updates or {}
        strictness.check_depth(run.config)
        self._check_config(run, given_updates, named_configs)
        reader = self._shown_command or command_name or self.default_command or ""
        unread = commands.unread_tools(self, reader)
        if not force:
            strictness.check_read(run, given_updates, unread, reader)
        self._attach_observers(run, ours)
        check_nested(run)
        if notices is not None:
            run.meta_info["ranks"] = self._world.note
        folder = self._folder_to_resume(run, unread)
        whole, run.config = run.config, strictness.without_unread(run, unread)
        adopted = LabRun.adopt(run, interval_s, self._system_metrics_s, folder, trial)
        adopted.notices = notices
        if notices is not None and not self._world.rank:
            publish_config(notices, whole)
        adopted.launch_options, adopted.recorders = ours, tuple(run.observers)
        adopted.check_settings = self._check_settings
        adopted.ingredients = {part.path: part for part, _ in self.traverse_ingredients() if part is not self}
        return adopted

    def _options_of_rank(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that this process takes: rank 0 alone records, and draws on the terminal."""
        if not self._world.rank:
            remember_terminal()
            return dict(options)
        forget_folders()
        return {name: value for name, value in options.items() if name not in _OPTIONS} | {"--unobserved": True}

    def _created(self, create: Callable[[], Any], updates: dict[str, Any]) -> tuple[Any, Notices | None]:
        """Return Sacred's run, with the config that its aliases and rank 0 lead to, and the notices of its ranks.

        Args:
            create: Makes the run of `updates`; called again once they have changed.
            updates: Of the config, nested; changed in place.
        """
        run = create()
        if self._aliases.follow(run, updates):
            run = create()
        notices = meet(self._world, self, run)
        if notices is not None and notices.world.rank:
            first = notices.take("config")
            if run.config.get("seed") != first.get("seed"):
                updates["seed"] = first.get("seed")  # Sacred draws one where none is given
                run = create()
            check_same_config(notices, run.config, first)
        if not sacred.SETTINGS.CONFIG.READ_ONLY_CONFIG:
            parts = list(self.traverse_ingredients())
            make_writable(function for part, _ in parts for function in part.captured_functions)
        return run, notices

    def _check_config(self, run: Any, given_updates: dict[str, Any], named_configs: Sequence[str]) -> None:
        """Refuse a config that no run can have, and note in the run where each of its entries is from."""
        if not run.force:
            strictness.check_known(self, run)
        self._aliases.mark(run.config_modifications)
        changes = run.config_modifications
        found = origins(self, run.config, changes, given_updates, named_configs, self._aliases.targets)
        run.meta_info["origins"] = grouped(found)
        if not (run.unobserved or run.queue_only):  # a queued run may be for a machine that has what this one lacks
            strictness.check_settings(self, run.config)

    def _attach_observers(self, run: Any, ours: Mapping[str, Any]) -> None:
        """Attach what records the run: the observers that the options `ours` ask for, or else a folder."""
        if not run.unobserved:
            run.experiment_info |= self._provenance(run.experiment_info["mainfile"])
        is_first = not self._world.rank
        # Those of Sacred's options are among the observers by now.
        if self._record_to is not None and is_first and not run.observers and file_option.get_flag() not in ours:
            run.observers.append(FileObserver(self._record_to))
        for flag, value in ours.items():
            try:
                _OPTIONS[flag].apply(value, run)
            except (ValueError, RuntimeError) as error:
                raise ConfigError(str(error)) from error

    def _folder_to_resume(self, run: Any, unread: Collection[str]) -> Path | None:
        """Return the folder of the run to resume; None for a new run, and for one that was queued."""
        queued = folder_to_start()
        if queued is not None:
            run.meta_info["queued"] = str(queued)
            return None
        if self._world.rank:
            return None
        parts = [part for part, _ in self.traverse_ingredients()]
        return folder_to_resume(
            run,
            self._aliases.targets,
            self.default_command,
            own=[part.path for part in parts if getattr(part, "is_of_lab", False)],
            unread=unread,
            has_ingredient="checkpoint" in [part.path for part in parts],
            world=self._world,
        )

    def _check_settings(self, words: Sequence[str], settings: Mapping[str, Any]) -> None:
        """Refuse settings that a run of the main function could not have; see `LabRun.check_settings`."""
        updates, named_configs = get_config_updates(words)
        self._check_start({**updates, **settings}, named_configs)

    def _check_start(self, updates: dict[str, Any], named_configs: Sequence[str], *, force: bool = False) -> None:
        """Refuse settings with which the main function could not start."""
        options = {"--unobserved": True, "--force": force}
        with given_back(self):
            run = self._create_run(self.default_command, updates, named_configs, options=options)
            strictness.check_settings(self, run.config)

    def _provenance(self, mainfile: str | None) -> dict[str, Any]:
        """Return the sources of the lab that are imported by now, and its repository, in Sacred's form."""
        root = Path(os.fsdecode(self.base_dir))
        main = root / mainfile if mainfile else None
        if main is not None and main.exists() and self._file is not None and main.samefile(self._file):
            # Sacred's has all links resolved.
            mainfile = provenance.source_name(self._file, root)
            main = root / mainfile if mainfile else main
        git = provenance.lab_git_state(root, main, content=False)
        repositories = [{"url": git["url"], "commit": git["commit"], "dirty": git["dirty"]}] if git else []
        sources = sorted({*provenance.imported_sources(root, main), *self._added_sources(root)})
        found = {"mainfile": mainfile, "sources": sources, "repositories": repositories}
        return found | ({"module": self._module} if self._module else {})

    def _added_sources(self, root: Path) -> Iterator[tuple[str, str]]:
        for part, _ in list(self.traverse_ingredients()):
            for path in getattr(part, "added_sources", ()):
                name = provenance.source_name(path, root)
                if name is None:
                    raise ConfigError(
                        f"add_source_file: {path} is not below {root}, where the sources of {self.path} are; move it "
                        "there, or keep it by add_resource, or give the experiment another base_dir"
                    )
                yield name, provenance.md5_of(path)


def _show(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be gone
        print(text, file=sys.stderr)


def _quieten_torch() -> None:
    """Let torch log warnings alone, as it sets itself once it is imported; Ctrl-C may come before that."""
    logger = logging.getLogger("torch")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)
