"""Parts of `sediment recover`."""
