"""What must exist on the broker, and making it so."""
