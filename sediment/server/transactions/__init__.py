"""Transactions: the state of each transactional id."""
