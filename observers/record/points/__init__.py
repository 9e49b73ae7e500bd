"""Points of metrics: packed while they are logged, appended to files, rewound and summed up, with their checksums."""
