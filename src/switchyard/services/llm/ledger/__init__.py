"""Tables and queries of calls to language models."""
