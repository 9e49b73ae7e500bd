"""The run folder: its format, identity, lease, journal, append-only and atomic files. No torch, no sacred."""
