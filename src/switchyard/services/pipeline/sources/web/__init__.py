"""Web pages of anybody, fetched politely."""
