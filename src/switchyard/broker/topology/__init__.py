"""The declared topology of the broker, and making a live broker conform to it."""
