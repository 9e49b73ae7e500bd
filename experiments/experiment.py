"""`Experiment`: Sacred's, which rejects invalid settings before the run starts and hands config over as `Map`."""

from __future__ import annotations

import contextlib
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import sacred
from sacred import commands as sacred_commands
from sacred import experiment as sacred_experiment
from sacred.dependencies import gather_sources_and_dependencies

from sacristan.configs.files import find_file
from sacristan.configs.importing import pause_collection, resume_collection
from sacristan.configs.nearest import suggestion
from sacristan.configs.standard_streams import OutputError, checked_output, open_standard_streams
from sacristan.experiments.running import LabRun, commands
from sacristan.experiments.running.command_line import check_command_line, settings_in, split_shown_words
from sacristan.experiments.running.endings import ending_of, show_next_steps
from sacristan.experiments.running.launching import Launcher
from sacristan.experiments.running.main_file import MainFile
from sacristan.experiments.running.one_run import only_run
from sacristan.ingredients.config.entry_types import typed
from sacristan.ingredients.config.ingredient import LabFunctions, look_once_at_sources
from sacristan.ingredients.config.named_configs import guard_sacred
from sacristan.ingredients.errors import ConfigError, LabError
from sacristan.observers.options import anonymous_option, environment_option, reads_option, tensorboard_option

# The lab's commands instead of Sacred's, by name; each is made for the experiment.
_COMMANDS: dict[str, Callable[[Any], Callable]] = {
    "print_config": lambda experiment: commands.make_print_config(lambda: experiment._launcher.shown_words),
    "save_config": lambda experiment: commands.save_config,
    "print_named_configs": commands.make_print_named_configs,
}


class _Frames:
    """Stands in for `inspect` where Sacred looks for the frame that creates an experiment, by a slow `inspect.stack`.

    Sacred collects sources from that frame's globals; the lab collects its own, so it gets a frame without any.
    """

    @staticmethod
    def stack() -> list[tuple[Any]]:
        empty = types.SimpleNamespace(f_globals={"__name__": __name__, "__file__": __file__})
        frames = [frame for frame, _ in traceback.walk_stack(sys._getframe(1))]
        return [(empty if frame.f_globals is globals() else frame,) for frame in frames]


class Experiment(LabFunctions, sacred.Experiment):
    """Sacred's Experiment, strict: an unknown setting, or one of the wrong type, is rejected before the run starts.

    Captured functions, commands and hooks receive `_config` and every dict of the config as a `configs.Map`, and
    `_run` as a `LabRun`. `config`, `named_config`, `capture`, `command`, `main`, `automain` and the hooks are Sacred's;
    `sacristan.ingredients.config.scope` describes what a config scope may contain.

    On the command line, errors of the lab (`LabError`) print one message and exit with code 1. Ctrl-C exits with 130,
    SIGTERM with 143, and any signal with 75 if the training has saved its state and can be resumed. A trial that its
    sweep prunes exits with 0.

    Runs are recorded in `my_runs/` in the working folder. Observers that are attached to the experiment, or `-F
    FOLDER`, replace that; `-m` adds a database, and `-u` records nothing.

    Args:
        name: Its name; by default that of the file that creates it.
        ingredients: The ingredients it is composed of.
        record_to: Folder to record runs in if there is no observer; None records none.
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
        names = sys._getframe(1).f_globals
        main_file = MainFile(names)
        if name is None and main_file.path is not None and not options.get("interactive"):
            name = Path(main_file.path).stem
        # With git, Sacred fails in a repository without a commit, and starts a process for every source.
        options.setdefault("save_git_info", False)
        options.setdefault("base_dir", main_file.base_dir)
        added = (tensorboard_option, environment_option, reads_option, anonymous_option)
        options["additional_cli_options"] = [*(options.get("additional_cli_options") or ()), *added]
        guard_sacred()
        look_once_at_sources()
        sacred_experiment.inspect = _Frames  # type: ignore[assignment]  # it has what Sacred uses of the module
        self._launcher = Launcher(self, main_file, record_to, system_metrics_s)
        self._is_command_line = False
        super().__init__(name, ingredients, **options)
        if "training" in [ingredient.path for ingredient, _ in list(self.traverse_ingredients())]:
            repeat = commands.make_replay(lambda: self.commands[self.default_command]())
            self._launcher.replay = self.command(repeat, unobserved=True)
        self.all_cli_options = Launcher.replace_options(self.all_cli_options)
        # Sacred took the frame above for the experiment's file; it is the caller's.
        self.doc = names.get("__doc__") or ""
        self.mainfile, self.sources, self.dependencies = gather_sources_and_dependencies(
            names, self.save_git_info, self.base_dir
        )

    @property
    def _config_path(self) -> str:
        return ""

    def command(self, function: Callable | None = None, *args: Any, **options: Any) -> Any:
        """Add a command; see `LabFunctions.command`. The lab's `print_config` and `save_config` replace Sacred's."""
        if function is not None and function.__module__ == sacred_commands.__name__ and function.__name__ in _COMMANDS:
            function = _COMMANDS[function.__name__](self)
        return super().command(function, *args, **options)

    def gather_commands(self) -> Iterator[tuple[str, Callable]]:
        """Yield name and function of each command whose ingredients the experiment has."""
        all_commands = list(super().gather_commands())
        return ((name, command) for name, command in all_commands if not commands.lacking(self, command))

    def always(self, *named_configs: str) -> None:
        """Apply named configs in every run, before those that are asked for.

        They set the experiment's own defaults for entries of its ingredients. A config scope cannot set those, because
        ingredients are computed before it.

        Args:
            *named_configs: Names of named configs, or paths of config files.

        Example:
            @ex.named_config
            def usual():
                training = {"epochs": 5}

            ex.always("usual")
        """
        self._launcher.always += named_configs

    def alias(self, **aliases: str) -> None:
        """Let an entry at the root stand for an entry of an ingredient: `ex.alias(lr="optimizer.lr")`.

        Setting either sets both; setting them to different values is rejected. The experiment's config scope reads the
        entry from the ingredient: `lr = optimizer["lr"]`.

        Args:
            **aliases: Dotted name of the ingredient's entry, by alias.
        """
        self._launcher.aliases.targets.update(aliases)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command, by default the main function, and return its `LabRun`; see `sacred.Experiment.run`.

        A run that another run starts on its own thread has that run's uid as its parent.

        Args:
            *args: Name of the command, `config_updates` (nested or with dotted names), `named_configs` (names or
                files), `info`, `meta_info`, `options`.
            **kwargs: The same by name.

        Raises:
            LabError: If the settings are invalid; before anything is recorded.
            ObserversError: If the run cannot be recorded or resumed.
            ConcurrentRunError: If another thread of this process runs an experiment, or a run starts one that shares
                its observers.
        """
        open_standard_streams()
        pause_collection()  # until the main function begins
        try:
            with only_run(self):
                return super().run(*args, **kwargs)
        except BaseException as error:
            if self._is_command_line:
                options = kwargs.get("options") or {}
                self._end(error, debug=bool(options.get("--debug") or options.get("--pdb")))
            raise
        finally:
            resume_collection()

    def run_commandline(self, argv: Any = None) -> Any:
        """Run the command line, and return its `LabRun`; see `sacred.Experiment.run_commandline`.

        Args:
            argv: The words, the program first, or all of them in one string; None is `sys.argv`.

        Raises:
            SystemExit: With the exit code, if the run does not complete.
        """
        self._is_command_line = True
        try:
            argv = sys.argv if argv is None else argv
            with checked_output(), typed(settings_in(argv)):
                check_command_line(argv, self.all_cli_options)
                argv, words = split_shown_words(argv, self.all_cli_options)
                self._launcher.show(words, dict(super().gather_commands()))
                run: LabRun | None = super().run_commandline(argv)  # type: ignore[assignment]  # it is of `create_run`
                if run is not None and run.meta_info["command"] == self.default_command:
                    show_next_steps(run, list(dict(self.gather_commands())))
                return run
        except LabError as error:
            self._end(error, debug=False)
            raise
        except OutputError as error:
            error.tell()
            sys.exit(error.code)
        finally:
            self._is_command_line = False
            self._launcher.show((), ())

    def _end(self, error: BaseException, *, debug: bool) -> None:
        """End the process with the message and exit code of an error, unless Sacred shows it."""
        folder = None if self.current_run is None else self.current_run.folder
        ending = ending_of(error, folder, self._launcher.world.rank, debug=debug)
        if ending is not None:
            message, code = ending
            with contextlib.suppress(OSError):  # the terminal may be gone
                if message:
                    print(message, file=sys.stderr)
            sys.exit(code)

    def _check_command(self, cmd_name: str | None) -> str | None:
        shown_command, shown_words = self._launcher.shown_command, self._launcher.shown_words
        if cmd_name == "save_config" and shown_words:
            shown_command = shown_words[0]
        if shown_command is not None and shown_command != cmd_name:
            self._check_command(shown_command)
        offered = dict(self.gather_commands())
        if cmd_name is None or cmd_name in offered:
            return super()._check_command(cmd_name)
        self._check_needs(cmd_name)
        hint = suggestion(cmd_name, offered)
        if cmd_name in dict(self.gather_named_configs()) or find_file(cmd_name).is_file():
            hint = f"to use it as a config, write with {cmd_name}"
        shown = cmd_name if cmd_name.isprintable() else repr(cmd_name)  # of a record, it may be anything
        raise ConfigError(f"{shown}: there is no such command; {hint}")

    def _check_needs(self, cmd_name: str | None) -> None:
        """Reject a command that needs ingredients which the experiment lacks."""
        lacking = commands.lacking(self, dict(super().gather_commands()).get(cmd_name))
        if lacking:
            raise ConfigError(
                f"{cmd_name}: this experiment lacks ingredients that the command needs: {', '.join(lacking)}; see the "
                "commands that it offers with: help"
            )

    def _create_run(
        self,
        command_name: str | None = None,
        config_updates: Mapping[str, Any] | None = None,
        named_configs: Sequence[str] = (),
        info: Mapping[str, Any] | None = None,
        meta_info: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> LabRun:
        self._check_needs(command_name)
        self.current_run = self._launcher.create_run(
            command_name, config_updates or {}, named_configs, info or {}, meta_info or {}, options or {}
        )
        return self.current_run
