"""Checks, metrics and reports for operators, shared by the command line and the HTTP API."""
