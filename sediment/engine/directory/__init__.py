"""A stopped log directory: lock, commit, load, repair, copy.  It never imports `engine.live`."""
