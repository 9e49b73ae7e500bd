"""Declaration of an ingredient's settings: scopes, types, config files, building by dotted name, random streams."""
