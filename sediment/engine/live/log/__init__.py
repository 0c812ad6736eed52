"""The log of one partition in use: append, roll, flush, read, truncate, replace segments."""
