"""A log directory in use: append, roll, flush, read, truncate and clean its logs, and manage them."""
