"""Handlers: their declaration, their context and their outcomes."""
