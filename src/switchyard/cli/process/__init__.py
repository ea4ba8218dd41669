"""Commands that are long-running processes."""
