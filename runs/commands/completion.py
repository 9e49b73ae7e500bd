"""`completion`: the script with which a shell completes commands, options and ids of runs."""

from __future__ import annotations

import argparse

__all__ = ["NO_JSON", "add_arguments", "main"]

NO_JSON = "it prints a script"

_EPILOG = """bash: eval "$(sacristan completion bash)" in ~/.bashrc; zsh: the same with zsh in ~/.zshrc, after compinit;
fish: sacristan completion fish > ~/.config/fish/completions/sacristan.fish"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = _EPILOG
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")


def main(arguments: argparse.Namespace) -> int:
    """Print the script for the shell."""
    import argcomplete

    print(argcomplete.shellcode(["sacristan", "runs"], shell=arguments.shell))
    return 0
