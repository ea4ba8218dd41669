"""Records of the pipeline's ledger, as plain values."""
