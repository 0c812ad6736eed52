"""A log directory at rest: lock, commit, load, repair, copy.  Never imports `engine.live`."""
