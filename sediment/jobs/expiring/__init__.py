"""Parts of `expire`."""
