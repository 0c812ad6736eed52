"""Reports of a run: table, JSON, HTML page and metrics."""
