"""Bulk actions: many jobs cancelled, rerun or moved by a filter, under a record."""
