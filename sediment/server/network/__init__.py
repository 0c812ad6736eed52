"""Connections: acceptor, processors, frames and the request queue; nothing here looks into requests."""
