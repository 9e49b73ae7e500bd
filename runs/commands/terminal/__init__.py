"""Shared by the commands: the arguments that people type, and everything that is printed."""
