"""The course of one run: strict checks, the run itself, signals, resuming, buffers, system metrics, commands."""
