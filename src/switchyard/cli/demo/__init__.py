"""`jobctl demo`: real documents through every stage."""
