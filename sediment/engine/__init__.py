"""Ownership of log directories: `directory` for stopped ones, `live` for those an engine serves.  Knows no Spark."""
