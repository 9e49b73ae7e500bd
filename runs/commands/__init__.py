"""The commands of `python -m runs`, one module a group.

A module has `add_parser(commands)`, which adds its commands by `runs.commands.arguments.add_command`; each names the
function that gets the arguments and returns the exit code. What it needs to do its work it imports when it runs, so
that the others start fast. Commands print, through `runs.commands.terminal`; what they print is found by the library.
"""
