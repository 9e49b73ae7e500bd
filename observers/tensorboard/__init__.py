"""`TensorBoardObserver`: event files."""
