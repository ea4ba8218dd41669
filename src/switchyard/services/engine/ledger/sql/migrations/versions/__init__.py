"""One module per migration; they are never changed once released."""
