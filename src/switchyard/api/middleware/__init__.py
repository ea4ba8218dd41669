"""Checks and limits before every endpoint: keys, rates, connections, bodies."""
