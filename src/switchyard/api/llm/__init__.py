"""Endpoints of the language models' wing."""
