"""Backends of a server: log directories that the server only reads, or that it owns and writes to."""
