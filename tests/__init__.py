"""Unit, integration, acceptance and chaos tests. Brokers and databases come from conftest.py."""
