"""Which segments live: time, size and log start offset, as pure policy."""
