"""A stopped log directory: lock, commit, load, repair, copy.  Never imports `engine.live`."""
