"""Dead letters: why a message is one, and reading those that wait."""
