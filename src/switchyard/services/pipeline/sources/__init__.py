"""Servers from which papers, code, models and web pages are taken in."""
