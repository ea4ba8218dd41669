"""AMQP: messages, lanes, topology, publishing and consuming. Knows nothing of what jobs mean."""
