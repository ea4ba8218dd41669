"""Runs jobs: consume, claim, run, conclude."""
