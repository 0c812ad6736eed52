"""Kafka's wire protocol: listener, requests, security, and the handlers of each API."""
