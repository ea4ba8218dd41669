"""Taking documents in: what they are, their text, and the words of it."""
