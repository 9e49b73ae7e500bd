"""Specs of sweeps: parameters and their laws, objectives, methods, the definition of a sweep, and its finalists."""
