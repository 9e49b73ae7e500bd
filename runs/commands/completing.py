"""`completion`: what makes a shell complete commands, options and ids of runs."""

from __future__ import annotations

import argparse

from runs.commands.arguments import Commands, add_command

__all__ = ["add_parser"]

_EPILOG = """bash: eval "$(runs completion bash)" in ~/.bashrc; zsh: the same with zsh in ~/.zshrc, after compinit;
fish: runs completion fish > ~/.config/fish/completions/runs.fish"""


def add_parser(commands: Commands) -> None:
    """Add the command."""
    help = "print what makes a shell complete `runs`"
    parser = add_command(commands, "completion", help, _completion, epilog=_EPILOG)
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")


def _completion(arguments: argparse.Namespace) -> int:
    import argcomplete

    print(argcomplete.shellcode(["runs"], shell=arguments.shell))
    return 0
