"""Owners of log directories: `directory` works while no broker uses the directory, `live` is the running engine."""
