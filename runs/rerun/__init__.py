"""Resume, fork and reproduce recorded runs, as processes of their own."""
