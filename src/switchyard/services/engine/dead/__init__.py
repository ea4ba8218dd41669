"""Dead letters: found, grouped, changed and kept."""
