"""Log directories that are only read: the catalog of their topics, and their logs."""
