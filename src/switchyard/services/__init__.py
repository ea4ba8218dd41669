"""Jobs, workers, the ledger and storage: everything above the broker."""
