"""Ownership of log directories: `directory` is for stopped ones, `live` for those in use by an engine; no Spark."""
