"""Jobs that are published at their times, by cron expressions."""
