"""Redrive: the letters that a filter matches go back to their lanes, with or without a change."""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from switchyard.broker.dead.dead_letter_headers import DeadLetterInfo, Reason
from switchyard.broker.lanes import DEAD_EXCHANGE
from switchyard.broker.message import JobMessage, now
from switchyard.broker.publish.outcome import Outgoing, envelope_of
from switchyard.services.engine.dead.changes import Change
from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.ledger.redrives import RedriveRepository
from switchyard.services.engine.records.requests import RedrivenCopy
from switchyard.services.engine.records.states import State
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.redrives import bury, ids, index, indexed, indexing, plan, redrive
from tests.support.system import lanes_with, open_system


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
        # If it kept the headers of its first death, the broker would drop it at the next one.
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
        all_ids = ["a", "b", "c", "d"]
        expected = {
            LetterFilter(): all_ids,
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
        for letter_filter, matching_ids in expected.items():
            tally = await plan(system, letter_filter)
            assert tally.matched == len(matching_ids), letter_filter
            assert [note.partition(":")[0] for note in tally.notes] == matching_ids, letter_filter
            assert await ids(system) == all_ids

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


INVALID_CHANGES = [
    (Change(values={"payload.n": "many"}), "payload of noop: n"),
    (Change(values={"priority": 11}), "priority"),
    (Change(values={"metadata.expires_at": "soon"}), "metadata.expires_at"),
    (Change(to="backfill.ghost"), "no job type 'ghost'"),
    (Change(to="nowhere.noop"), "no lane 'nowhere'"),
    (Change(to="maintenance.noop"), "not worked in lane maintenance"),
]


async def test_change_that_makes_no_valid_job_leaves_the_letter_and_says_why(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await bury(system, "job", payload={"n": 1})
        [before] = await system.letters()
        for change, error in INVALID_CHANGES:
            progress = await redrive(system, change=change)
            assert (progress.redriven, progress.invalid) == (0, 1), error
            assert error in progress.notes[0]

            [after] = await system.letters()
            assert (after.delivery.body, after.info) == (
                before.delivery.body,
                before.info,
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

            async def has_died(redrives: int = redrives) -> bool:
                return [letter.redrives for letter in await system.letters()] == [redrives]

            await eventually(has_died)
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

            async def is_waiting(redrives: int = redrives) -> bool:
                return (
                    await system.ledger.dead_letters.get_dead(job_id) is not None
                    and await indexed(system, job_id) == ("waiting", 1, redrives)
                    and await ids(system) == [job_id]
                )

            await eventually(is_waiting)
            record = await system.wait_for_state(job_id, State.DEAD)
            assert record.redrives == redrives
            assert (await redrive(system)).redriven == 1

        record = await system.wait_for_state(job_id, State.SUCCEEDED)
        assert record.redrives == 2
        assert await indexed(system, job_id) == ("redriven", 1, 1)
        assert [attempt.redrive for attempt in record.timeline] == [0, 1]


async def test_index_is_right_when_a_job_dies_again_before_its_redrive_is_recorded(
    broker310: TestBroker, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_redriven = RedriveRepository.record_redriven

    async def record_late(
        redrives: RedriveRepository, copies: Sequence[RedrivenCopy], *options: Any
    ) -> None:
        async def is_dead_again() -> bool:
            letter = await system.ledger.dead_letters.get_dead(copies[0].letter_id)
            return letter is not None and letter.redrives == copies[0].redrives

        await eventually(is_dead_again)
        await record_redriven(redrives, copies, *options)

    monkeypatch.setattr(RedriveRepository, "record_redriven", record_late)
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
        info = DeadLetterInfo(Reason.EXHAUSTED, "backfill.noop")
        envelope = envelope_of(JobMessage.decode(json.dumps(body).encode()), info.headers())
        await system.wire.send(DEAD_EXCHANGE, "backfill.noop", envelope)
        assert (await redrive(system)).redriven == 1
        sent = json.loads((await system.take("backfill.llm")).body)
        assert sent["extra"] == [1, None]
        assert sent["metadata"]["tenant"] == "t-1"
        assert sent["metadata"]["redrives"] == 1
