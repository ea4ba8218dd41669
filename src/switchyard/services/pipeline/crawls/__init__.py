"""Crawls: pages found by following links from start addresses, one job for each."""
