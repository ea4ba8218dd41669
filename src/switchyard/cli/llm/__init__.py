"""Commands of the language models' wing."""
