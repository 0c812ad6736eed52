"""Read-only log directories: the catalog of their topics, and their logs."""
