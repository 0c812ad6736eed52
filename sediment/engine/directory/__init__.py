"""A log directory that no broker uses: lock, commit, load, repair and copy it.  It never imports `engine.live`."""
