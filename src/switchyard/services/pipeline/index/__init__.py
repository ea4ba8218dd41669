"""Chunks, vectors and search."""
