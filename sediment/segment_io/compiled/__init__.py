"""Compiled loops: how they are compiled and cached, and the memory they read.  Knows nothing of Kafka."""
