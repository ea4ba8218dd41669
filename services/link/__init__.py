"""Edges between documents."""
