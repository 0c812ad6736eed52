"""Differential tests against the classes of a Kafka release; they need Java and Kafka's JARs (see oracle.py)."""
