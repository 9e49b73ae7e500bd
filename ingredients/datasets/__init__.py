"""Data without Sacred: sources, preparation, batches, augmentation."""
