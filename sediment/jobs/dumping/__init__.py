"""Parts of `dump`: the rows that it reads, and the formats in which it writes them to stdout."""
