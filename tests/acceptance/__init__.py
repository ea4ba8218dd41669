"""Tests of the real command line, in a process of its own, on a real broker."""
