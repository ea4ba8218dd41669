"""What other systems tell us, made into jobs."""
