"""Who owns a directory: its lock, the replacement of segments, and what a start after a crash does.  Knows no Spark."""
