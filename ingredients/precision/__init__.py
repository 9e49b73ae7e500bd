"""Mixed precision without Sacred."""
