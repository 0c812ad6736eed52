"""Compiled loops of the cleaner: offset map, record filter, transactions and the sweep."""
