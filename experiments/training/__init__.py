"""Training: the loop, its metrics, the epoch that is best, progress, and what is reported at the end."""
