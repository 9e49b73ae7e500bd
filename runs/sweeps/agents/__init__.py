"""Agents of a sweep: local processes, Ray actors and Slurm tasks that take its trials one by one."""
