"""Delta tables: session, run ledger, archive of deleted records and snapshots."""
