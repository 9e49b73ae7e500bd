"""Store and Run, over folders and MongoDB."""
