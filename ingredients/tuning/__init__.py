"""Searches before a training: a learning rate, the largest batch. Without Sacred."""
