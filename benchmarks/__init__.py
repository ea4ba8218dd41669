"""Comparisons with other job systems, side by side in one run. See README.md."""
