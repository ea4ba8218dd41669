"""The HTTP API over real servers."""
