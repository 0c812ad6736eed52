"""Every byte on disk, and what a directory says about itself.  Knows no policy, no clock and no Spark."""
