"""Check that broker, ledger, file storage and index belong to one system."""
