"""One module for each system, each run in processes of its own.

A contender has `publish(url, count, window)` and `worker_command(...)`, so that the measuring
is the same for all.
"""
