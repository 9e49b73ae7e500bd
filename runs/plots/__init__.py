"""Curves, on the terminal and as pictures."""
