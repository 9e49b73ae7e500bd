"""Processes that start runs: warm ones, which have imported third-party packages already."""
