"""Support for users' tests of their handlers."""
