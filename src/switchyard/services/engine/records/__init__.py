"""Records of the ledger, as data classes: no database and no broker is needed to read them."""
