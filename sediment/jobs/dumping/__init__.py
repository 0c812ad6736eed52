"""Parts of `dump`: the rows that it reads, and the forms in which it writes them to stdout."""
