"""Handlers of requests, one module for a subject; each has a class that names its handlers by API."""
