"""JSON for programs: the documents that `--json` prints, their schemas, and a server of the Model Context Protocol."""
