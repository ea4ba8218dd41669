"""Which system broker, ledger, file storage and index belong to, and whether it is one."""
