"""The desk where documents are handed in and asked for."""
