"""Authenticate callers: keys of the HTTP API, and signatures."""
