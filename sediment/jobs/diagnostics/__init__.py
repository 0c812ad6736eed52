"""Checks of `sediment doctor`: the machine, Spark, and log directories.  Nothing is changed and no lock is taken."""
