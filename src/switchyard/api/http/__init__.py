"""The forms of HTTP: problems, OpenAPI, event streams, routes."""
