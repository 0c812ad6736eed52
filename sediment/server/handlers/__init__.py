"""Handlers of the APIs: each module translates between messages and the part of the server that knows the answer."""
