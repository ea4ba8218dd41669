"""What stands before every endpoint: keys, rates, limits, bodies."""
