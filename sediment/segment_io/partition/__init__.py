"""One partition directory, read only: listing, offsets, producers, checkpoints and slices."""
