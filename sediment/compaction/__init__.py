"""Which records live.  Renames nothing, owns nothing, knows no Spark; only `cleaner` does I/O."""
