"""A dead letter whose publish was cut off before its confirm is published again, and may be there
twice: it is listed, sent back and purged as one."""

import asyncio
from collections.abc import Sequence

from pydantic import SecretStr

from switchyard.broker.dead.dead_letter_headers import DeadLetterInfo, Reason
from switchyard.broker.lanes import DEAD_EXCHANGE
from switchyard.broker.message import JobMessage
from switchyard.broker.publish.outcome import envelope_of
from switchyard.broker.wire.envelope import Envelope
from switchyard.cli.system.free_ports import LOOPBACK
from switchyard.services.engine.bulk.runner import BulkRunner
from switchyard.services.engine.dead.files import export_letters
from switchyard.services.engine.dead.indexing import index_waiting
from switchyard.services.engine.dead.letters import LetterFilter
from switchyard.services.engine.dead.purge import (
    PurgeHandler,
    PurgeProgress,
    count_letters,
    start_purge,
)
from switchyard.services.engine.dead.scan import scanning_in_turn
from switchyard.services.engine.records.requests import DeadLetterFilter, NewJob
from switchyard.services.engine.records.states import State
from tests.support.brokers import TestBroker
from tests.support.eventually import MAX_WAIT, eventually
from tests.support.jobs import journal
from tests.support.redrives import plan, redrive
from tests.support.system import System, open_system
from tests.support.tcp_proxy import TcpProxy

KEY = "backfill.noop"


async def bury(
    system: System, job_id: str, *, attempts: Sequence[int] = (3, 3), error: str = "RuntimeError"
) -> None:
    """Record a job, and publish a dead letter of it for each of these attempts."""
    message = JobMessage(job_id=job_id, job_type="noop", payload={"n": 1})
    await system.ledger.jobs.record(NewJob(message, "backfill", "llm", KEY))
    for number, attempt in enumerate(attempts):
        letter = message.with_metadata(attempts=attempt)
        headers = DeadLetterInfo(
            Reason.EXHAUSTED, KEY, error_type=error, message=f"letter {number}"
        ).headers()
        await system.wire.send(DEAD_EXCHANGE, KEY, envelope_of(letter, headers))
    await index_waiting(system.settings, system.ledger, system.registry)


async def test_a_letter_whose_confirm_is_cut_off_is_there_twice_and_tells_of_one_death(
    broker310: TestBroker, sqlite_url: str
) -> None:
    confirm_is_held = asyncio.Event()

    def hold_the_confirm(sent: bytes) -> bool:
        if b"x-dead-reason" in sent and not confirm_is_held.is_set():
            proxy.pause("to_client")
            confirm_is_held.set()
        return False

    async with (
        open_system(broker310, sqlite_url) as system,
        TcpProxy(LOOPBACK, broker310.node.amqp_port) as proxy,
    ):
        await system.start_worker(amqp_url=SecretStr(proxy.url(broker310.amqp_url)))
        proxy.cut_when(hold_the_confirm)
        await system.publish("hot.scripted", {"steps": ["permanent"]}, job_id="job")
        await asyncio.wait_for(confirm_is_held.wait(), MAX_WAIT)
        await eventually(lambda: has_letters(system, 1))
        proxy.cut()
        proxy.resume()
        await system.wait_for_state("job", State.DEAD)
        await eventually(lambda: has_letters(system, 2))
        first, second = await system.letters()
        assert first.death == second.death == ("job", 0, 1)
        assert first.info == second.info


async def test_two_letters_of_one_death_are_listed_once_with_what_the_first_says(
    broker: TestBroker, database_url: str
) -> None:
    async with open_system(broker, database_url) as system:
        await bury(system, "job")
        await bury(system, "other", attempts=(3,))
        (first, second) = sorted(
            (await system.ledger.dead_letters.list_dead()).items, key=lambda letter: letter.id
        )
        assert (first.id, first.copies, first.error_message) == ("job", 2, "letter 0")
        assert (second.id, second.copies) == ("other", 1)
        (group,) = await system.ledger.dead_letters.dead_groups()
        assert group.count == 2
        async with scanning_in_turn(system.settings, system.ledger) as scan:
            assert [letter.id async for letter in scan.letters()] == ["job", "other"]
            assert (scan.scanned, scan.total) == (3, 3)

        async def all_are_back() -> bool:
            return len(await system.letters()) == 3

        await eventually(all_are_back)


async def test_two_letters_of_one_death_are_sent_back_once(
    broker: TestBroker, database_url: str
) -> None:
    async with open_system(broker, database_url) as system:
        await bury(system, "job")
        dry_run = await plan(system)
        assert (dry_run.matched, dry_run.done) == (1, 1)
        assert len(await eventually(system.letters)) == 2
        progress = await redrive(system)
        assert (progress.redriven, progress.dropped) == (1, 0)
        assert await system.ready(KEY.replace("noop", "llm")) == 1
        assert await system.letters() == []
        await system.start_worker()
        await system.wait_for_state("job", State.SUCCEEDED)
        assert journal.runs("job") == 1


async def test_two_letters_of_one_death_are_purged_together(
    broker: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker, sqlite_url) as system:
        await bury(system, "job")
        await bury(system, "kept", error="ValueError")
        letter_filter = LetterFilter(error_type="RuntimeError")
        dry_run = await count_letters(system.settings, system.ledger, letter_filter, asyncio.sleep)
        assert dry_run == PurgeProgress(scanned=4, total=4, purged=1)
        await eventually(lambda: has_letters(system, 4))
        operation = await start_purge(system.ledger, letter_filter, created_by="test")
        handler = PurgeHandler(system.settings, system.ledger)
        ended = await BulkRunner(system.ledger, [handler]).run_one(operation.id)
        assert ended.counts == PurgeProgress(scanned=4, total=4, purged=1).to_json()
        await eventually(lambda: has_letters(system, 2))
        assert [letter.id for letter in await system.letters()] == ["kept", "kept"]


async def has_letters(system: System, number: int) -> bool:
    return len(await system.letters()) == number


async def test_a_later_death_of_the_same_job_is_a_letter_of_its_own(
    broker310: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker310, sqlite_url) as system:
        await bury(system, "job", attempts=(2, 3))
        async with scanning_in_turn(system.settings, system.ledger) as scan:
            deaths = [letter.death async for letter in scan.letters()]
        assert deaths == [("job", 0, 2), ("job", 0, 3)]
        letter = await system.ledger.dead_letters.get_dead("job")
        assert letter is not None
        assert (letter.copies, letter.attempts, letter.error_message) == (2, 3, "letter 1")


async def test_equal_messages_that_are_no_jobs_are_one_letter_for_every_count(
    broker: TestBroker, sqlite_url: str
) -> None:
    async with open_system(broker, sqlite_url) as system:
        for number in range(30):
            body = b"no job %d" % (number % 3)
            await system.wire.send(
                DEAD_EXCHANGE, "hot.noop", Envelope(body=body, message_id=str(number))
            )
        await index_waiting(system.settings, system.ledger, system.registry)
        assert await system.ledger.dead_letters.count_dead(DeadLetterFilter(state="waiting")) == 3
        assert await system.ledger.dead_letters.count_messages() == 30
        assert {
            letter.copies for letter in (await system.ledger.dead_letters.list_dead()).items
        } == {10}
        assert len([line async for line in export_letters(system.ledger, DeadLetterFilter())]) == 3
        every_letter = LetterFilter()
        dry_run = await count_letters(system.settings, system.ledger, every_letter, asyncio.sleep)
        assert dry_run == PurgeProgress(scanned=30, total=30, purged=3)
        await eventually(lambda: has_letters(system, 30))

        operation = await start_purge(system.ledger, every_letter, created_by="test")
        handler = PurgeHandler(system.settings, system.ledger)
        ended = await BulkRunner(system.ledger, [handler]).run_one(operation.id)
        assert ended.counts == dry_run.to_json()
        assert await system.letters() == []
        assert await system.ledger.dead_letters.count_messages() == 0
