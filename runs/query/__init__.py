"""Names of fields, and the filter language."""
