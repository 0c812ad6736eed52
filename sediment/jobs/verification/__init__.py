"""Rules and reports of `sediment verify`.  Never imports the cleaner."""
