"""Checkpoints without Sacred: the training's state, its files, the folder that keeps them."""
