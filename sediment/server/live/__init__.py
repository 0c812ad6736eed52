"""Log directories that this process owns: their node, topics, partitions, flushes and producer ids."""
