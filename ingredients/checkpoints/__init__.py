"""Checkpoints without Sacred: the state of a training, its files, and the folder that keeps them."""
