"""Classify documents: by keywords, and by meaning."""
