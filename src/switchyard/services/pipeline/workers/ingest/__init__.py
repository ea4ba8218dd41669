"""The ingest worker's job types."""
