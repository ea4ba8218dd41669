"""Joins of a thousand jobs while processes are killed, and an account of each. `make join-run`;
CONTRIBUTING.md tells the rest."""
