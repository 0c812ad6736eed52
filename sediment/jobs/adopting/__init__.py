"""Adoption of log directories: the options, and the two kinds of nodes that can own a directory."""
