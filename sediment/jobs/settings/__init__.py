"""Settings of a run: option and file sources, cluster metadata and log directories."""
