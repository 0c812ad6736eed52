"""Retention: the segments that stay, by time, size and log start offset, as pure policy."""
