"""Requests to language models: queue, pacing, budgets, stored answers, batches."""
