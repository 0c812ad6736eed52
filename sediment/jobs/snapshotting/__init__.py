"""Parts of `snapshot`."""
