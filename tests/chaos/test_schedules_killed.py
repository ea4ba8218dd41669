"""Schedules while schedulers are killed, on hosts whose clocks are an hour apart."""

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
PACE: dict[str, Any] = {"turn": 0.05, "lease": 0.8, "pending": 0.5}

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
        running: list[Process] = [
            await processes.start("scheduler", ahead=ahead, **PACE) for ahead in skews
        ]
        for kill in range(KILLS):
            before = len(await book.history("each", 500))

            async def goes_on(than: int = before) -> bool:
                return len(await book.history("each", 500)) >= than + 2

            await eventually(goes_on)
            which = kill % 2
            running[which].kill()
            await running[which].ended()
            running[which] = await processes.start("scheduler", ahead=skews[which], **PACE)
        await book.pause("each")

        async def settled() -> bool:
            rows = await book.history("each", 500)
            return all(each.outcome is not FiringOutcome.DUE for each in rows)

        await eventually(settled)
        rows = list(reversed(await book.history("each", 500)))
        assert {each.outcome for each in rows} == {FiringOutcome.FIRED}
        dues = [each.due_at for each in rows]
        assert dues == [record.next_at + number for number in range(len(dues))]
        jobs = (await system.ledger.job_reads.list_jobs(limit=1000)).items
        ids = await system.ledger.system.job_ids()
        assert {job.id for job in jobs} == {job_id_of(ids, "each", due) for due in dues}
        await asyncio.gather(*(each.ended() for each in _killed(running)))


def _killed(running: list[Process]) -> list[Process]:
    for each in running:
        each.kill()
    return running
