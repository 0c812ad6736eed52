"""Adopting log directories: options, and the two kinds of nodes that can own one."""
