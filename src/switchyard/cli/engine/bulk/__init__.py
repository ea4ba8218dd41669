"""Shared by the commands for all long operations: backfills, redrives, purges."""
