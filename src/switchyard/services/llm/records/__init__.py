"""Plain values that the language models' ledger keeps."""
