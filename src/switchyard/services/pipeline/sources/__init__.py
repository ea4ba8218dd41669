"""Servers that know papers, code and models."""
