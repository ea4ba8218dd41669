"""What the tests stand on: real brokers and databases, a proxy that cuts, and ways to wait."""
