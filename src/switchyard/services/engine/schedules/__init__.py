"""Publish jobs at times given by cron expressions."""
