"""Stores that are MongoDB databases."""
