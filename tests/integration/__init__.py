"""Tests of one part each against real brokers and databases."""
