"""The document pipeline, on real files, a real index and a real HTTP server."""
