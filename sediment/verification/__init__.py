"""Verification: the rules by which a correct compaction is recognized.  This package never imports the cleaner."""
