"""What a handler is, what it gets and what it answers."""
