"""Losses without Sacred."""
