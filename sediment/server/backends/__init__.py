"""Sources of a server: log directories that it only reads, or that it owns and writes to."""
