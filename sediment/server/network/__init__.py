"""Connections: acceptor, processors, frames and the request queue; this package does not decode requests."""
