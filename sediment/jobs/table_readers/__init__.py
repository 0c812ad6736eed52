"""Reading of every table of `kafka-log` and `dump`, including tables that need files outside one partition."""
