"""`FileObserver`, and attaching it."""
