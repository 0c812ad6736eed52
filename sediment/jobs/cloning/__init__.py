"""The command `clone`: its run, options, check and report."""
