"""Endpoints of the document pipeline."""
