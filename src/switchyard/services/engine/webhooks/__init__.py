"""Turn webhooks of other systems into jobs."""
