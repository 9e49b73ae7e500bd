"""Sweeps: many runs of one experiment, whose settings a sampler chooses, by agents on one machine or many."""
