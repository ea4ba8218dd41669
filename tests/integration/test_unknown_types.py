"""A worker that does not know a job's type sends the job on, to one that does."""

import asyncio
from dataclasses import replace
from datetime import timedelta

from pydantic import BaseModel, ConfigDict

from switchyard.broker.dead.dead_letter_headers import Reason
from switchyard.broker.message import now
from switchyard.cli.engine.jobs.jobs import hints
from switchyard.cli.engine.jobs.publish_one import describe_failure
from switchyard.services.engine.bulk.runner import BulkRunner
from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.dead.purge import PurgeHandler, start_purge
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.monitoring.checks.jobs import dead as dead_letters
from switchyard.services.engine.monitoring.checks.workers import unknown_types
from switchyard.services.engine.records.results import UNKNOWN_TYPE, UnknownTypeReport
from switchyard.services.engine.records.states import State
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.redrives import indexing, redrive
from tests.support.system import System, lanes_with, open_system


def make_older_registry(system: System, name: str) -> Registry:
    """Return the job types of an older version, which did not have this type yet."""
    return Registry(job_type for job_type in system.registry if job_type.name != name)


async def test_no_job_dies_in_a_rolling_deploy(broker: TestBroker, sqlite_url: str) -> None:
    async with open_system(broker, sqlite_url) as system:
        older = [
            await system.start_worker("llm", registry=make_older_registry(system, "noop"))
            for _ in range(2)
        ]
        ids = [await system.publish("hot.noop", {"n": n}) for n in range(30)]
        await eventually(lambda: older[0].worker.counters.snoozed > 0)
        await system.start_worker("llm")  # a worker of the new version, beside two of the old one
        ids += [
            await system.publish(f"{lane}.noop", {"n": n})
            for n in range(15)
            for lane in ("hot", "backfill")
        ]
        await older[0].stop()
        for job_id in ids:
            record = await system.wait_for_state(job_id, State.SUCCEEDED, timeout=60)
            assert (record.attempts, record.crashes) == (0, 0)
        assert await system.letters() == []
        assert await system.ledger.workers.find_unknown_types() == []
        assert older[1].worker.counters.dead == 0


async def test_a_job_of_a_type_that_nobody_knows_is_reported_and_dies_at_its_lanes_age(
    broker: TestBroker, sqlite_url: str
) -> None:
    lanes = lanes_with(ttl_seconds={"hot": 2})
    async with open_system(broker, sqlite_url, lanes=lanes) as system:
        worker = await system.start_worker("llm", registry=make_older_registry(system, "noop"))
        job_id = await system.publish("hot.noop")
        record = await system.wait_for_state(job_id, State.RETRYING)
        assert (record.error_type, record.worker_id) == (UNKNOWN_TYPE, worker.worker_id)
        assert "does not know the job type 'noop'" in (record.error_message or "")
        assert "JOBS_MODULES" in (record.error_message or "")
        context = DoctorContext(system.settings, system.registry, ledger=system.ledger)
        (check,) = await unknown_types(context)
        assert check.status == "wrong"
        assert f"{worker.worker_id} does not know noop (1 job " in check.detail
        letter = await system.wait_for_letter(job_id)
        assert letter.info.reason is Reason.EXPIRED
        assert "does not know the job type 'noop'" in (letter.info.message or "")
        dead = await system.wait_for_state(job_id, State.DEAD)
        assert (dead.reason, dead.attempts) == ("expired", 0)
        # After 0.2 s, 0.4 s, 0.8 s and 0.8 s: it does not come back at once each time.
        assert 2 <= len(dead.timeline) <= 6


async def test_a_job_of_an_unknown_type_dies_at_its_own_expiry(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url, retry_delays=(0.2, 60)) as system:
        await system.start_worker("llm", registry=make_older_registry(system, "noop"))
        soon = now() + timedelta(seconds=0.3)
        job_id = await system.publish("hot.noop", expires_at=soon)
        dead = await system.wait_for_state(job_id, State.DEAD)
        assert (dead.reason, dead.error_type) == ("expired", "Expired")


async def test_a_payload_that_does_not_fit_a_known_type_is_dead_at_once(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await system.start_worker("llm")
        await system.publish_foreign("hot.noop", {"n": "three"}, job_id="wrong")
        letter = await system.wait_for_letter("wrong")
        assert letter.info.reason is Reason.INVALID_PAYLOAD


class OlderNumber(BaseModel):
    """The payload of `noop` in the version before."""

    model_config = ConfigDict(extra="forbid")


async def test_a_redrive_sends_back_jobs_that_an_older_worker_did_not_accept(
    broker: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker, sqlite_url) as system, indexing(system):
        noop = replace(system.registry.get("noop"), payload_model=OlderNumber)
        older = await system.start_worker(
            "llm", registry=Registry([*make_older_registry(system, "noop"), noop])
        )
        ids = [await system.publish("hot.noop", {"n": n}) for n in range(40)]
        await system.publish_raw("hot.noop", b"garbage")
        await system.wait_until_all(ids, State.DEAD)
        await eventually(lambda: older.worker.counters.malformed == 41)
        await older.stop()
        dead = await system.record(ids[0])
        assert (dead.reason, dead.error_type) == ("invalid_payload", "InvalidPayload")
        assert any("older than the publisher" in hint for hint in hints(dead))
        assert "older than the publisher" in describe_failure(dead)
        context = DoctorContext(system.settings, system.registry, ledger=system.ledger)
        *_, check = await dead_letters(context)
        assert "of these, 40 had a payload that their worker did not accept" in check.detail
        assert "older than the publisher? " in check.remedy

        # A purge of the malformed letter keeps the others.
        letter_filter = LetterFilter(reason="malformed")
        operation = await start_purge(system.ledger, letter_filter, created_by="ann@desk")
        handler = PurgeHandler(system.settings, system.ledger)
        ended = await BulkRunner(system.ledger, [handler]).run_one(operation.id)
        assert ended.counts["purged"] == 1

        await system.start_worker("llm")
        progress = await redrive(system, LetterFilter(reason="invalid_payload"))
        assert (progress.redriven, progress.invalid) == (40, 0)
        await system.wait_until_all(ids, State.SUCCEEDED)
        assert await system.letters() == []


async def test_a_flood_of_unknown_jobs_leaves_the_worker_to_its_own_jobs(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url, retry_delays=(0.2, 0.4, 30)) as system:
        worker = await system.start_worker("llm", registry=make_older_registry(system, "noop"))
        await asyncio.gather(*(system.publish("hot.noop") for _ in range(200)))
        await eventually(lambda: worker.worker.counters.snoozed == 600)
        job_id = await system.publish("hot.gated")
        from tests.support.jobs import journal

        journal.release(job_id)
        await system.wait_for_state(job_id, State.SUCCEEDED)
        assert worker.worker.counters.snoozed == 600
        assert await system.ledger.workers.find_unknown_types() == [
            UnknownTypeReport(worker.worker_id, "noop", 200)
        ]
