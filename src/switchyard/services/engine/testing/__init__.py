"""For the tests that users write of their handlers."""
