"""AMQP itself: connections, channels, and messages as they go in and out."""
