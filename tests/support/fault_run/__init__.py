"""A whole system of real processes under load, with something broken every few seconds, and an
account of every accepted job at the end. See `make fault-run` in CONTRIBUTING.md."""
