"""How well search finds: small documents and queries of our own, with what each should find."""
