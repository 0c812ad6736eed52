"""Spark, settings, command line and reports.  Knows no byte layout."""
