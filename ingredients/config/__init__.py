"""How an ingredient declares its settings: scopes, types, config files, building by dotted name, random streams."""
