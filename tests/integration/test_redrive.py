"""Redrive: what a filter matches goes back to its lane; the rest stays put."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest

from switchyard.broker.dead.certificate import DeathCertificate, Reason
from switchyard.broker.dead.scan import scanning
from switchyard.broker.lanes import DEAD_EXCHANGE
from switchyard.broker.message import JobMessage, Metadata, now
from switchyard.broker.publish.outcome import Outgoing, envelope_of
from switchyard.services.bulk import control as bulk_control
from switchyard.services.bulk.runner import BulkRunner
from switchyard.services.dead.changes import Change
from switchyard.services.dead.indexing import index_waiting
from switchyard.services.dead.letters import LetterFilter
from switchyard.services.dead.purge import PurgeHandler, start_purge
from switchyard.services.ledger import Ledger
from switchyard.services.records import BulkState, NewJob, RedrivenCopy, State
from switchyard.services.redrive.handler import RedriveHandler
from switchyard.services.redrive.spec import RedriveSpec, resume_redrive, start_redrive
from switchyard.services.scheduler.scheduler import Pace, Scheduler
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.redrives import plan, redrive
from tests.support.system import System, lanes_with, open_system


async def bury(
    system: System,
    job_id: str,
    routing_key: str = "backfill.noop",
    payload: Mapping[str, Any] | None = None,
    *,
    reason: Reason = Reason.EXHAUSTED,
    error_type: str = "RuntimeError",
    died: datetime | None = None,
    **metadata: Any,
) -> str:
    """A recorded job that a worker has given up; its letter waits, indexed."""
    lane, _, job_type = routing_key.partition(".")
    message = JobMessage(
        job_id=job_id,
        job_type=job_type,
        payload=dict(payload or {}),
        metadata=Metadata(attempts=3, **metadata),
    )
    certificate = DeathCertificate(
        reason, routing_key, error_type=error_type, dead_at=(died or now()).isoformat()
    )
    await system.ledger.record(NewJob(message, lane, "llm", routing_key))
    await system.wire.send(DEAD_EXCHANGE, routing_key, envelope_of(message, certificate.headers()))
    await index(system)
    return job_id


async def bury_many(system: System, ids: Sequence[str], routing_key: str = "backfill.noop") -> None:
    """Many of them, in this order; without records."""
    job_type = routing_key.partition(".")[2]
    certificate = DeathCertificate(Reason.EXHAUSTED, routing_key, error_type="RuntimeError")
    letters = [
        envelope_of(JobMessage(job_id=job_id, job_type=job_type, payload={}), certificate.headers())
        for job_id in ids
    ]
    for start in range(0, len(letters), 200):
        group = letters[start : start + 200]
        await asyncio.gather(
            *(system.wire.send(DEAD_EXCHANGE, routing_key, letter) for letter in group)
        )
    await index(system)


async def index(system: System) -> None:
    await index_waiting(system.settings, system.ledger, system.registry)


async def ids(system: System) -> list[str]:
    return [letter.id for letter in await system.letters()]


async def indexed(system: System, letter_id: str) -> tuple[str, int, int]:
    """What the index says: state, copies, redrives."""
    letter = await system.ledger.get_dead(letter_id)
    assert letter is not None
    return letter.state, letter.copies, letter.redrives


@asynccontextmanager
async def indexing(system: System) -> AsyncIterator[None]:
    """The index follows by itself, as it does where a scheduler runs."""
    scheduler = Scheduler(
        system.settings, system.registry, system.ledger, pace=Pace(turn=0.05, lease=1)
    )
    task = asyncio.create_task(scheduler.run())
    await scheduler.is_active.wait()
    yield
    scheduler.stop()
    await asyncio.wait_for(task, 20)


# --- what goes back ---------------------------------------------------------------------------


async def test_redriven_job_runs_again_from_its_first_attempt(
    broker: TestBroker, database_url: str
) -> None:
    async with open_system(broker, database_url) as system:
        await system.start_worker()
        job_id = await system.publish("hot.scripted", {"steps": ["permanent", "done"]})
        await system.wait_for_state(job_id, State.DEAD)
        await index(system)
        assert await indexed(system, job_id) == ("waiting", 1, 0)

        assert (await redrive(system)).redriven == 1
        record = await system.wait_for_state(job_id, State.SUCCEEDED)
        assert (record.redrives, record.attempts) == (1, 0)
        assert [start.attempt for start in journal.starts_of(job_id)] == [1, 1]
        assert await system.letters() == []
        assert await indexed(system, job_id) == ("redriven", 1, 0)


async def test_copy_that_goes_back_is_fresh_and_otherwise_the_same(
    broker: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker, sqlite_url) as system:
        long_ago = now() - timedelta(days=3)
        later = now() + timedelta(days=1)
        await bury(
            system,
            "job",
            payload={"n": 5, "unknown": {"kept": None}},
            created_at=long_ago,
            queued_at=long_ago,
            not_before=later,
            expires_at=later,
            source="arxiv",
        )
        await redrive(system)

        copy = await system.take("backfill.llm")
        message = JobMessage.decode(copy.body)
        assert message.payload == {"n": 5, "unknown": {"kept": None}}
        metadata = message.metadata
        assert (metadata.redrives, metadata.attempts, metadata.source) == (1, 0, "arxiv")
        assert (metadata.created_at, metadata.expires_at) == (long_ago, later)
        assert metadata.queued_at is not None
        assert now() - metadata.queued_at < timedelta(seconds=30)
        assert metadata.not_before is None
        # A header of its first death would make the broker drop it at the next one.
        assert copy.headers == {}
        assert await system.state("job") == State.QUEUED


async def test_each_filter_picks_its_letters_and_leaves_the_others(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        old = now() - timedelta(hours=2)
        await bury(system, "a", "hot.noop")
        await bury(system, "b", "backfill.noop", reason=Reason.PERMANENT)
        await bury(system, "c", "backfill.gated", error_type="ValueError")
        await bury(system, "d", "backfill.noop", died=old)
        everything = ["a", "b", "c", "d"]
        expected = {
            LetterFilter(): everything,
            LetterFilter(ids=frozenset({"b", "d", "unknown"})): ["b", "d"],
            LetterFilter(job_type="gated"): ["c"],
            LetterFilter(lane="hot"): ["a"],
            LetterFilter(reason="permanent"): ["b"],
            LetterFilter(error_type="ValueError"): ["c"],
            LetterFilter(older_than=3600): ["d"],
            LetterFilter(younger_than=3600): ["a", "b", "c"],
            LetterFilter(lane="backfill", job_type="noop", younger_than=3600): ["b"],
            LetterFilter(lane="maintenance"): [],
        }
        for which, matching in expected.items():
            tally = await plan(system, which)
            assert tally.matched == len(matching), which
            assert [note.partition(":")[0] for note in tally.notes] == matching, which
            assert await ids(system) == everything

        assert (await redrive(system, LetterFilter(ids=frozenset({"b", "d"})))).redriven == 2
        assert await ids(system) == ["a", "c"]


async def test_redrive_to_another_lane(broker310: TestBroker, sqlite_url: str) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await system.start_worker(lanes=("backfill",))
        await bury(system, "job", "hot.noop", {"n": 3})
        assert (await redrive(system, change=Change(to="backfill.noop"))).redriven == 1
        await system.wait_for_state("job", State.SUCCEEDED)
        [start] = journal.starts_of("job")
        assert start.lane == "backfill"


async def test_redrive_with_changed_values(broker310: TestBroker, sqlite_url: str) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await system.start_worker()
        await bury(system, "job", "hot.scripted", {"steps": ["raise"]})
        values = {"payload.steps": ["retry:0.1", "done"], "priority": 7, "metadata.max_attempts": 2}
        assert (await redrive(system, change=Change(values=values))).redriven == 1
        record = await system.wait_for_state("job", State.SUCCEEDED)
        assert (record.attempts, record.redrives) == (1, 1)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (Change(values={"payload.n": "many"}), "payload of noop: n"),
        (Change(values={"priority": 11}), "priority"),
        (Change(values={"metadata.expires_at": "soon"}), "metadata.expires_at"),
        (Change(to="backfill.ghost"), "no job type 'ghost'"),
        (Change(to="nowhere.noop"), "no lane 'nowhere'"),
        (Change(to="maintenance.noop"), "not worked in lane maintenance"),
    ],
)
async def test_change_that_makes_no_valid_job_leaves_the_letter_and_says_why(
    broker310: TestBroker, sqlite_url: str, change: Change, complaint: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await bury(system, "job", payload={"n": 1})
        [before] = await system.letters()
        progress = await redrive(system, change=change)
        assert (progress.redriven, progress.invalid) == (0, 1)
        assert complaint in progress.notes[0]

        [after] = await system.letters()
        assert (after.delivery.body, after.certificate) == (
            before.delivery.body,
            before.certificate,
        )
        assert await indexed(system, "job") == ("waiting", 1, 0)
        assert await system.state("job") == State.DEAD


async def test_expired_job_runs_when_it_is_redriven(broker: TestBroker, sqlite_url: str) -> None:
    async with open_system(broker, sqlite_url) as system:
        await system.start_worker()
        past = now() - timedelta(minutes=1)
        job_id = await system.publish("hot.noop", expires_at=past)
        record = await system.wait_for_state(job_id, State.DEAD)
        assert record.reason == "expired"

        await redrive(system)
        await system.wait_for_state(job_id, State.SUCCEEDED)


async def test_job_that_the_broker_expired_twice_is_not_lost(
    broker: TestBroker, sqlite_url: str
) -> None:
    lanes = lanes_with(ttl_seconds={"backfill": 1})
    async with open_system(broker, sqlite_url, lanes=lanes) as system, indexing(system):
        job_id = await system.publish("backfill.noop")
        for redrives in range(2):

            async def dies(redrives: int = redrives) -> bool:
                return [each.redrives for each in await system.letters()] == [redrives]

            await eventually(dies)
            if redrives:
                await system.start_worker()
            assert (await redrive(system)).redriven == 1
        record = await system.wait_for_state(job_id, State.SUCCEEDED)
        assert record.redrives == 2


async def test_redriven_job_that_dies_again_can_be_redriven_again(
    broker: TestBroker, database_url: str
) -> None:
    async with open_system(broker, database_url) as system, indexing(system):
        await system.start_worker()
        steps = ["permanent", "permanent", "done"]
        job_id = await system.publish("hot.scripted", {"steps": steps})
        for redrives in range(2):

            async def waits(redrives: int = redrives) -> bool:
                return (
                    await system.ledger.get_dead(job_id) is not None
                    and await indexed(system, job_id) == ("waiting", 1, redrives)
                    and await ids(system) == [job_id]
                )

            await eventually(waits)
            record = await system.wait_for_state(job_id, State.DEAD)
            assert record.redrives == redrives
            assert (await redrive(system)).redriven == 1

        record = await system.wait_for_state(job_id, State.SUCCEEDED)
        assert record.redrives == 2
        assert await indexed(system, job_id) == ("redriven", 1, 1)
        assert [line.redrive for line in record.timeline] == [0, 1]


async def test_index_is_right_when_a_job_dies_again_before_its_redrive_is_noted(
    broker310: TestBroker, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    note_redriven = Ledger.note_redriven

    async def late(ledger: Ledger, copies: Sequence[RedrivenCopy], *options: Any) -> None:
        async def dead_again() -> bool:
            letter = await ledger.get_dead(copies[0].letter_id)
            return letter is not None and letter.redrives == copies[0].redrives

        await eventually(dead_again)
        await note_redriven(ledger, copies, *options)

    monkeypatch.setattr(Ledger, "note_redriven", late)
    async with open_system(broker310, database_url) as system, indexing(system):
        await system.start_worker()
        job_id = await system.publish("hot.scripted", {"steps": ["permanent"]})
        await system.wait_for_state(job_id, State.DEAD)
        await system.wait_until_ready("jobs.dead.log", 0)

        assert (await redrive(system)).redriven == 1
        assert await indexed(system, job_id) == ("waiting", 1, 1)
        assert await ids(system) == [job_id]
        assert (await redrive(system)).redriven == 1
        assert await indexed(system, job_id) == ("waiting", 1, 2)


# --- what does not go back --------------------------------------------------------------------


async def test_dry_run_changes_nothing(broker: TestBroker, sqlite_url: str) -> None:
    async with open_system(broker, sqlite_url) as system:
        await bury_many(system, [f"job-{number}" for number in range(20)])
        before = [
            (each.id, each.delivery.body, each.certificate) for each in await system.letters()
        ]
        for _ in range(3):
            tally = await plan(system)
            assert (tally.matched, tally.done) == (20, 20)
            assert tally.notes[0] == "job-0: would go to backfill.noop"
        after = [(each.id, each.delivery.body, each.certificate) for each in await system.letters()]
        assert after == before
        assert await system.ready("backfill.llm") == 0
        assert await indexed(system, "job-0") == ("waiting", 1, 0)


async def test_order_of_what_stays_is_kept(broker: TestBroker, sqlite_url: str) -> None:
    async with open_system(broker, sqlite_url) as system:
        # More than a quorum queue sends to a consumer that asks for no number.
        everything = [f"job-{number:04}" for number in range(2_200)]
        await bury_many(system, everything)
        for _ in range(3):
            assert await ids(system) == everything

        redriven = everything[10:2_190:5]
        progress = await redrive(system, LetterFilter(ids=frozenset(redriven)))
        assert progress.redriven == len(redriven)
        staying = sorted(set(everything) - set(redriven))
        assert await ids(system) == staying
        purged = staying[::7]
        which = LetterFilter(ids=frozenset(purged))
        operation = await start_purge(system.ledger, which, created_by="ann@desk")
        handler = PurgeHandler(system.settings, system.ledger)
        ended = await BulkRunner(system.ledger, [handler]).run_one(operation.id)
        assert ended.counts["purged"] == len(purged)
        staying = sorted(set(staying) - set(purged))
        for _ in range(3):
            assert await ids(system) == staying

        assert await system.ready("backfill.llm") == len(redriven)
        first = JobMessage.decode((await system.take("backfill.llm")).body)
        assert first.job_id == redriven[0]


async def test_order_is_kept_over_several_pieces_while_new_ones_come(
    broker: TestBroker, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("switchyard.broker.dead.scan.PIECE", 150)
    monkeypatch.setattr("switchyard.broker.dead.scan.QUORUM_PIECE", 150)
    async with open_system(broker, sqlite_url) as system:
        everything = [f"job-{number:04}" for number in range(1_000)]
        await bury_many(system, everything)
        for step in (7, 3):
            newer: list[str] = []
            redriven = everything[1:700:step]
            settings = system.settings
            async with scanning(settings.require_amqp_url(), profile=settings.profile) as scan:
                number = 0
                async for letter in scan.letters():
                    number += 1
                    if letter.id in redriven:
                        assert letter.ack()
                    if number % 100 == 0:
                        newer.append(f"new-{step}-{number:04}")
                        await bury_many(system, newer[-1:])
                    if number == 800:
                        break  # the rest was fetched, or not, and nobody has seen it
            everything = [each for each in everything if each not in redriven] + newer

            async def all_back(expected: Sequence[str] = tuple(everything)) -> bool:
                return await ids(system) == list(expected)

            await eventually(all_back)


async def test_limit_takes_the_oldest(broker: TestBroker, sqlite_url: str) -> None:
    async with open_system(broker, sqlite_url) as system:
        await bury_many(system, ["a", "b", "c", "d"])
        progress = await redrive(system, LetterFilter(ids=frozenset("bcd")), limit=2)
        assert progress.redriven == 2
        assert await ids(system) == ["a", "d"]


async def test_letter_of_a_job_that_has_ended_meanwhile_is_dropped_and_said_so(
    broker310: TestBroker, database_url: str
) -> None:
    async with open_system(broker310, database_url) as system:
        await system.start_worker()
        done = await system.publish("hot.noop", job_id="done")
        await system.wait_for_state(done, State.SUCCEEDED)
        cancelled = await system.publish("backfill.noop", job_id="off", delay=3600)
        await system.ledger.cancel(cancelled, 0.0)
        await bury_many(system, ["done", "dead", "off"], "hot.noop")

        dry = await plan(system)
        assert (dry.dropped, dry.done) == (2, 1)
        assert await ids(system) == ["done", "dead", "off"]

        progress = await redrive(system)
        assert (progress.dropped, progress.redriven) == (2, 1)
        assert progress.notes == (
            "done: dropped, the job has succeeded meanwhile",
            "off: dropped, the job has cancelled meanwhile",
        )
        await system.wait_for_state("dead", State.SUCCEEDED)
        assert await system.letters() == []
        assert (await indexed(system, "done"))[0] == "dropped"
        assert journal.runs("done") == 1
        assert journal.runs("off") == 0


@pytest.mark.parametrize("lane", ["backfill", "hot"])
async def test_full_lane_leaves_the_rest_as_it_was(
    broker: TestBroker, sqlite_url: str, lane: str
) -> None:
    lanes = lanes_with(max_length={lane: 5})
    async with open_system(broker, sqlite_url, lanes=lanes) as system:
        everything = [f"job-{number:03}" for number in range(30)]
        await bury_many(system, everything, f"{lane}.noop")
        before = {each.id: each.certificate for each in await system.letters()}
        spec = RedriveSpec(LetterFilter(), remote=False)
        operation = await start_redrive(system.ledger, spec, created_by="test")

        async def waits_for_room() -> bool:
            seen = await bulk_control.require_bulk(system.ledger, operation.id)
            waits = seen.note == f"waits for room in {lane}.llm"
            return waits and seen.counts["redriven"] == 5

        runner = BulkRunner(
            system.ledger,
            [RedriveHandler(system.settings, system.registry, system.ledger, lanes=system.lanes)],
        )
        running = asyncio.create_task(runner.run_one(operation.id))
        await eventually(waits_for_room)
        await bulk_control.pause(system.ledger, operation.id)
        assert (await running).state is BulkState.PAUSED
        assert await system.ready(f"{lane}.llm") == 5

        left = await system.letters()
        assert [each.id for each in left] == everything[5:]
        assert {each.id: each.certificate for each in left} == {
            job_id: before[job_id] for job_id in everything[5:]
        }
        await index(system)
        for job_id in everything[5:]:
            assert await indexed(system, job_id) == ("waiting", 1, 0)

        await system.start_worker()
        await resume_redrive(system.ledger, operation.id)
        assert (await runner.run_one(operation.id)).counts["redriven"] == 30
        await system.wait_until_all(everything, State.SUCCEEDED)


async def test_malformed_letter_stays_and_says_why(broker: TestBroker, sqlite_url: str) -> None:
    async with open_system(broker, sqlite_url) as system:
        await system.start_worker()
        raw = b"\x00\xffnot a job\xfe"
        await system.publish_raw("hot.noop", raw)
        [letter] = await eventually(system.letters)
        for _ in range(2):
            progress = await redrive(system)
            assert (progress.invalid, progress.redriven) == (1, 0)
            assert progress.notes[0].startswith(f"{letter.id}: not redriven: the body is no job")
        [still] = await system.letters()
        assert still.delivery.body == raw


async def test_job_of_an_unknown_type_goes_back_once_its_key_is_mended(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await system.start_worker()
        message = JobMessage(job_id="typo", job_type="nopo", payload={"n": 4})
        await system.wire.publish(message, "hot.nopo")
        await eventually(system.letters)
        assert (await redrive(system)).invalid == 1
        assert (await redrive(system, change=Change(to="hot.noop"))).redriven == 1
        assert (await system.wait_for_state("typo", State.SUCCEEDED)).result == {"n": 4}


# --- copies -----------------------------------------------------------------------------------


async def test_copy_of_an_interrupted_redrive_runs_once(
    broker310: TestBroker, database_url: str
) -> None:
    async with open_system(broker310, database_url) as system:
        await bury(system, "job")
        [letter] = await system.letters()
        assert letter.message is not None
        # A redrive that was killed between the confirm and the acknowledgement.
        copy = letter.message.with_metadata(attempts=0, redrives=1, queued_at=now())
        await system.wire.publish_many([Outgoing(copy, "backfill.noop")])

        assert (await redrive(system)).redriven == 1
        assert await system.ready("backfill.llm") == 2
        worker = await system.start_worker()
        record = await system.wait_for_state("job", State.SUCCEEDED)
        await eventually(lambda: worker.worker.counters.skipped == 1)
        assert journal.runs("job") == 1
        assert record.redrives == 1


async def test_body_of_another_publisher_goes_back_with_its_unknown_fields(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        body = {
            "job_id": "foreign",
            "job_type": "noop",
            "payload": {"n": 1},
            "metadata": {"tenant": "t-1", "nothing": None},
            "extra": [1, None],
        }
        certificate = DeathCertificate(Reason.EXHAUSTED, "backfill.noop")
        envelope = envelope_of(JobMessage.decode(json.dumps(body).encode()), certificate.headers())
        await system.wire.send(DEAD_EXCHANGE, "backfill.noop", envelope)
        assert (await redrive(system)).redriven == 1
        sent = json.loads((await system.take("backfill.llm")).body)
        assert sent["extra"] == [1, None]
        assert sent["metadata"]["tenant"] == "t-1"
        assert sent["metadata"]["redrives"] == 1
