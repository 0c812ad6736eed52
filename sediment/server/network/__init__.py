"""Connections: acceptor, processors, frames, and the request queue; the contents of requests are unknown here."""
