"""Experiments and projects to start from, written from templates.

An experiment is a script with an ingredient of its own, a recipe and a test. A project is a git repository with them.
"""

from __future__ import annotations

from sacristan.experiments.new.writing import write_experiment, write_project

__all__ = ["write_experiment", "write_project"]
