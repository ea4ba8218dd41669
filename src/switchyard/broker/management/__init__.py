"""The management API over HTTP, and what a broker has, as values."""
