"""Reading of any table of `kafka-log` and `dump`, also of those that need more than the files of one partition."""
