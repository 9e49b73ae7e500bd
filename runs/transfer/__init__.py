"""Copies, archives, tables and synchronisation of runs."""
