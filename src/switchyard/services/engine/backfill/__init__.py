"""Backfills: one job for each item of a source, published at a pace that keeps hot work first."""
