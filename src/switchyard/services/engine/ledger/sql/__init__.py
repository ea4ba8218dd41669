"""The SQL engine below the ledger's nouns."""
