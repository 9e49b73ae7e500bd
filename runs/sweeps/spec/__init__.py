"""Definition of a sweep: its spec, distributions and grids of parameters, constraints, choice of the best points."""
