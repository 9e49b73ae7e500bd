"""The SQLite index over a folder of runs."""
