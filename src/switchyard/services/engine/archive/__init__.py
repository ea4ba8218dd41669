"""Ended jobs in Parquet files, after their time in the ledger."""
