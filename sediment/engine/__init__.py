"""Ownership of log directories: `directory` is for stopped directories, `live` for those of a running engine."""
