"""Rules and reports of `sediment verify`.  This package never imports the cleaner."""
