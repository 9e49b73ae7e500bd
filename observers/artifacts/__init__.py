"""Artifacts: versioned content with lineage."""
