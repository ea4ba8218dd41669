"""References of papers: find them, cut them into fields, and link them to works."""
