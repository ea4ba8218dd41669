"""Who may call, and who it was: the keys of the HTTP API, and signatures."""
