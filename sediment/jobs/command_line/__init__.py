"""The command line of every job: options, progress, standard output and logging."""
