"""Adoption of log directories: the options, the report, and the two kinds of nodes that can own a directory."""
