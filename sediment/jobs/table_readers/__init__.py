"""Reading of any table of `kafka-log` and `dump`, even if it needs more than the files of one partition."""
