"""Fetch web pages, within the rules of their robots.txt."""
