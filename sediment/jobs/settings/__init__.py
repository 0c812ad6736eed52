"""Settings of a run, from options, files, cluster metadata and log directories."""
