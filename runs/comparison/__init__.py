"""Comparison of runs: differences, groups, statistics, reports."""
