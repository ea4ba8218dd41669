"""The job engine: job types, ledger, workers, publishing, dead letters, redrive, backfill,
schedules."""
