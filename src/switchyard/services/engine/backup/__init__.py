"""Copies of a whole system: made while it runs, checked, restored, and compared with the broker."""
