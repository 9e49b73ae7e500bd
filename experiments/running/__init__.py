"""How one run goes: the strict checks, the run itself, signals, resuming, buffers, system metrics, commands."""
