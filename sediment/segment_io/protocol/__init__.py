"""Kafka's wire protocol: messages, headers, API keys and error codes."""
