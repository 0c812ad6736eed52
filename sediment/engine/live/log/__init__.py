"""One partition's log in use: append, roll, flush, read, truncate, replace segments."""
