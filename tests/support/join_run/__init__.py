"""Joins of a thousand jobs while processes are killed, and an account of each. See
`make join-run` in CONTRIBUTING.md."""
