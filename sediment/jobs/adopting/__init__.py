"""Adoption of log directories: its options, and the two kinds of nodes that can own a directory."""
