"""Dead letters sent back to their lanes."""
