"""Scripts that were not written for the lab, as runs: their start and end, settings, and what they log elsewhere."""
