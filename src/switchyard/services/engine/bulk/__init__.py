"""Long operations over many jobs: held, noted, paused, and giving way to hot work."""
