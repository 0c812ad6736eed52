"""A log directory in use: append, roll, flush, read, truncate, clean, and the log manager."""
