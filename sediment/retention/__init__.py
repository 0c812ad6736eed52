"""Retention: the segments to keep, by time, size and log start offset, as pure policy."""
