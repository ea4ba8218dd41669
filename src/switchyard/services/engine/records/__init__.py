"""What the ledger keeps, as plain values: no database and no broker is needed to read them."""
