"""Plain values that the pipeline's ledger keeps."""
