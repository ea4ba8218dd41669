"""Chunks of text and the vectors that stand for them."""
