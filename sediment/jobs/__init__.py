"""Spark, settings, command line and reports.  No byte layouts here."""
