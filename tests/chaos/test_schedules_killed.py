"""Schedules fire once while schedulers are killed, on hosts whose clocks are an hour apart."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from switchyard.services.engine.records.schedules import FiringOutcome
from switchyard.services.engine.schedules.entry import ScheduleEntry
from switchyard.services.engine.schedules.service import Schedules, job_id_of
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.system import open_system
from tests.support.worker_process import Process, Processes

KILLS = 5
INTERVALS: dict[str, Any] = {"turn": 0.05, "lease": 0.8, "pending": 0.5}

pytestmark = pytest.mark.long


async def test_each_due_time_is_fired_once_while_schedulers_are_killed(
    broker310: TestBroker, database_url: str, tmp_path: Path
) -> None:
    async with (
        open_system(broker310, database_url) as system,
        Processes(system.settings, tmp_path) as processes,
    ):
        book = Schedules(system.ledger, system.registry)
        entry = ScheduleEntry(name="each", cron="* * * * * *", job="hot.noop")
        record = await book.add(entry, remote=False, created_by="test")
        skews = (1800.0, -1800.0)
        schedulers: list[Process] = [
            await processes.start("scheduler", ahead=ahead, **INTERVALS) for ahead in skews
        ]
        for kill in range(KILLS):
            firings_before = len(await book.history("each", 500))

            async def fires_again(count: int = firings_before) -> bool:
                return len(await book.history("each", 500)) >= count + 2

            await eventually(fires_again)
            index = kill % 2
            schedulers[index].kill()
            await schedulers[index].ended()
            schedulers[index] = await processes.start("scheduler", ahead=skews[index], **INTERVALS)
        await book.pause("each")

        async def is_settled() -> bool:
            rows = await book.history("each", 500)
            return all(row.outcome is not FiringOutcome.DUE for row in rows)

        await eventually(is_settled)
        rows = list(reversed(await book.history("each", 500)))
        assert {row.outcome for row in rows} == {FiringOutcome.FIRED}
        due_times = [row.due_at for row in rows]
        assert due_times == [record.next_at + number for number in range(len(due_times))]
        jobs = (await system.ledger.job_reads.list_jobs(limit=1000)).items
        ids = await system.ledger.system.job_ids()
        assert {job.id for job in jobs} == {job_id_of(ids, "each", due) for due in due_times}
        for scheduler in schedulers:
            scheduler.kill()
        await asyncio.gather(*(scheduler.ended() for scheduler in schedulers))
