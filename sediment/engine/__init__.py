"""Ownership of log directories: `directory` for stopped ones, `live` for those in use by an engine.  No Spark here."""
