"""Commands of the job engine."""
