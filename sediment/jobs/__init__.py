"""Spark, settings, command line and reports, without knowledge of byte layouts."""
