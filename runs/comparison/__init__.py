"""Comparisons of runs: statistics of groups, mean curves, reports, model cards, and differences of two runs."""
