"""Experiments to start from: a script with an ingredient of its own, a recipe and a test, written from templates."""

from __future__ import annotations

from experiments.new.writing import write_experiment

__all__ = ["write_experiment"]
