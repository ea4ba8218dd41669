"""Commands that only read: lanes, workers, limits, doctor."""
