"""Dead letters: find, group, change, index and purge them."""
