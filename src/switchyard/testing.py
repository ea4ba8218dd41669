"""Test your handlers: without a broker (`run_job`), or with a real worker (`open_worker`).

docs/testing.md tells the rest.
"""

from switchyard.services.engine.jobs.registry import InvalidPayload
from switchyard.services.engine.testing.running import JobRun, run_job, run_job_sync
from switchyard.services.engine.testing.worker import HandlerRun, TestWorker, open_worker

__all__ = [
    "HandlerRun",
    "InvalidPayload",
    "JobRun",
    "TestWorker",
    "open_worker",
    "run_job",
    "run_job_sync",
]
