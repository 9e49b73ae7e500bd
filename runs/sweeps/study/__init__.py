"""The study of a sweep: where it is kept, what samplers and pruners ask of it, and the runs of its points."""
