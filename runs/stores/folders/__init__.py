"""Stores that are folders of runs."""
