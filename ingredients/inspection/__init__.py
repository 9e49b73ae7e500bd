"""Inspection without Sacred: probes of the modules of a model, and profiles of steps."""
