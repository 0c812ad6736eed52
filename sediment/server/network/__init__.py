"""Connections: acceptor, processors, frames, and the queue of requests.  Nothing here knows what a request asks."""
