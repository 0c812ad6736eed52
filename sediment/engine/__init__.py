"""Ownership of log directories: `directory` for stopped ones, `live` for those that an engine uses; without Spark."""
