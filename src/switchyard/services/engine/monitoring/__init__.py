"""What operators look at; the command line and the HTTP API both ask here."""
