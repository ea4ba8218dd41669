"""Who may call: the keys of the HTTP API."""
