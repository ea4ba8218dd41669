"""arXiv: its API, asked politely."""
