"""One segment file and its indexes: reading, searching, recovery, appends and writing."""
