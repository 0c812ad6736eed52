"""Parts of `make bench-serve`: the servers and their ratios, and the rounds of produces."""
