"""One segment file and its indexes: read, search, scan, append and write."""
