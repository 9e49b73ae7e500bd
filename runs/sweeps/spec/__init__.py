"""Specs of sweeps: parameters and their distributions, objectives, methods, and the definition of a sweep."""
