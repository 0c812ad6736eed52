"""Run, options and report of `clone`."""
