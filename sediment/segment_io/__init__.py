"""Every byte on disk, and what a directory says about itself.  Knows no policy and no Spark."""
