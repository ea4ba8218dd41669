"""Consuming: several queues in strict priority."""
