"""What a sweep is: its spec, the laws and grids of its parameters, its constraints, how its best points are judged."""
