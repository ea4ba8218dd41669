"""The system itself: brokers, vhosts, topology, tables, keys, settings."""
