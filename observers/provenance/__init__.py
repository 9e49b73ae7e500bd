"""Provenance of a run: git, sources, packages, GPUs, determinism flags."""
