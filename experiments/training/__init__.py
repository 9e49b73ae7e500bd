"""Training: the loop, its metrics, the best epoch, progress, and the reports at the end."""
