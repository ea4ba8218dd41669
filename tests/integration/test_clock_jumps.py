"""The clock of the ledger's host jumps by an hour, as when it is set right after a start."""

from sqlalchemy import Connection, text
from structlog.testing import capture_logs

from switchyard.services.engine.records.states import State
from switchyard.services.engine.scheduler.duties import SchedulerIntervals
from switchyard.services.engine.scheduler.scheduler import Scheduler
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.system import System, open_system

JUMP = 3600.0
"""Seconds."""
TIME_COLUMNS = {
    "jobs": ("created_at", "queued_at", "started_at", "updated_at", "run_at", "expires_at"),
    "workers": ("beat_at", "started_at"),
    "leases": ("expires_at",),
    "limit_holds": ("expires_at",),
}


async def jump(system: System, seconds: float) -> None:
    """Put all stored times back, as if the ledger's clock had jumped ahead by so many seconds."""

    def shift(connection: Connection) -> None:
        for table, columns in TIME_COLUMNS.items():
            changes = ", ".join(f"{column} = {column} - {seconds}" for column in columns)
            connection.execute(text(f"UPDATE {table} SET {changes}"))

    await system.ledger.core.database.write(shift)


async def test_no_running_job_runs_twice_when_the_clock_jumps(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await system.start_worker("llm")
        await system.start_worker("llm")
        job_id = await system.publish("hot.gated")
        await journal.started(job_id)
        intervals = SchedulerIntervals(turn=0.05, pending=0.0)
        scheduler = Scheduler(system.settings, system.registry, system.ledger, intervals=intervals)
        sent_again = 0
        try:
            for seconds in (JUMP, -JUMP, JUMP, JUMP):
                await jump(system, seconds)
                sent_again += (await scheduler.turn()).lost
        finally:
            await scheduler.close()
        assert sent_again, "no copy of the job was sent"
        with capture_logs() as logs:
            await eventually(
                lambda: "job runs elsewhere" in {line["event"] for line in logs},
                what="the other worker has looked whether the first one lives",
            )
        journal.release(job_id)
        await system.wait_for_state(job_id, State.SUCCEEDED)
        await system.stop_workers()
        assert journal.runs(job_id) == 1
