"""Parts of `dump`: which rows it reads, and the forms in which it writes them to stdout."""
