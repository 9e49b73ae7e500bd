"""A sweep as people see it: its status on the terminal, its pages, plots and pictures."""
