"""Ownership of log directories: `directory` works on stopped ones, `live` on those that an engine has open."""
