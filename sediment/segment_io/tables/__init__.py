"""The contents of log files as tables."""
