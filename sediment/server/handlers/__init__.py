"""Handlers of the APIs: each module translates between messages and one part of the server."""
