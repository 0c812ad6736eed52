"""Parts of `restore`."""
