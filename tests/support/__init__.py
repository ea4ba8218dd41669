"""Helpers of the tests: real brokers and databases, a proxy that cuts connections, ways to wait."""
