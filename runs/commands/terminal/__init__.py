"""Shared by the commands: arguments, and everything that is printed."""
