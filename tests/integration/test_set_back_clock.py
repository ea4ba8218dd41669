"""Leases, pauses and claims of the dead end although the ledger's clock was set back."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from sqlalchemy import Connection, text

from switchyard.services.engine.ledger import Ledger
from switchyard.services.llm.concurrency_policy import Bounds, PolicyState
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.records.llm_batches import BatchState
from switchyard.services.llm.records.llm_servers import (
    AnswerClaimRequest,
    LeaseAcquired,
    LeaseHeld,
    ServerPaused,
    SlotAcquired,
    SlotsFull,
)
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.sources.source_errors import SourceBusy
from switchyard.services.pipeline.sources.throttle import FleetThrottle, pause_remaining

SET_BACK = 2 * 3600.0
"""Seconds."""
END_COLUMNS = (
    ("leases", "expires_at"),
    ("llm_slots", "expires_at"),
    ("llm_servers", "paused_until"),
    ("llm_servers", "hot_waits_until"),
    ("llm_answers", "lease_until"),
    ("llm_batches", "fenced_until"),
    ("catalogue_answers", "lease_until"),
)
"""Tables, and their columns with the time at which something ends."""


@pytest.fixture
async def ledger(database_url: str) -> AsyncIterator[Ledger]:
    async with await Ledger.open(database_url, check=True) as opened:
        yield opened


async def set_clock_back(ledger: Ledger) -> None:
    def shift(connection: Connection) -> None:
        for table, column in END_COLUMNS:
            connection.execute(text(f"UPDATE {table} SET {column} = {column} + {SET_BACK}"))

    await ledger.core.database.write(shift)


async def test_slots_and_pauses_of_model_servers_end(ledger: Ledger) -> None:
    async def take_slot(slot: str, server: str = "one", *, is_hot: bool = True) -> object:
        return await LlmLedger(ledger).slots.take_llm_slot(
            server, slot, "dead", ttl=15.0, is_hot=is_hot, first_limit=1, max_limit=1
        )

    assert await take_slot("a") == SlotAcquired()
    assert await take_slot("b") == SlotsFull(1, 1)
    await LlmLedger(ledger).slots.end_llm_slot(
        "other", "none", lambda state, _, now: replace(state, paused_until=now + 3600.0)
    )
    assert isinstance(await take_slot("c", "other"), ServerPaused)
    await set_clock_back(ledger)
    assert await take_slot("b", is_hot=False) == SlotAcquired()
    assert await take_slot("c", "other") == SlotAcquired()
    reports = await LlmLedger(ledger).slots.llm_servers()
    assert [(report.in_flight, report.paused_for) for report in reports] == [(1, 0.0), (1, 0.0)]


async def test_claims_to_questions_end(ledger: Ledger) -> None:
    async def claim_answer(holder: str) -> object:
        answers = LlmLedger(ledger).answers
        return await answers.claim_llm_answer(AnswerClaimRequest("k", holder, ttl=15.0, max_age=60))

    async def claim_question(holder: str) -> tuple[str, ...]:
        answers = PipelineLedger(ledger).catalogue_answers
        return (await answers.claim_catalogue_questions(["k"], holder, ttl=6.0, max_age=60)).claimed

    batches = LlmLedger(ledger).batches
    assert await claim_answer("dead") == LeaseAcquired()
    assert await claim_question("dead") == ("k",)
    await ledger.core.database.write(_add_batch)
    assert await batches.fence_llm_batch("batch", 600.0)
    assert not await batches.fence_llm_batch("batch", 600.0)
    assert await claim_answer("living") == LeaseHeld()
    assert await claim_question("living") == ()
    await set_clock_back(ledger)
    assert await claim_answer("living") == LeaseAcquired()
    assert await claim_question("living") == ("k",)
    assert await batches.fence_llm_batch("batch", 600.0)


async def test_pauses_and_places_of_sources_end(ledger: Ledger) -> None:
    def throttle(max_wait: float) -> FleetThrottle:
        return FleetThrottle(
            ledger, "arxiv", label="arXiv", interval=0.0, max_wait=max_wait, waits_for_place=False
        )

    async with throttle(30.0).turn(takes=1.0) as turn:
        await turn.pause(3600.0)
    with pytest.raises(SourceBusy):
        async with throttle(30.0).turn(takes=1.0):
            pass
    for lease_name in ("arxiv.place.1", "arxiv.place.2", "arxiv.connection"):
        assert await ledger.leases.acquire_lease(lease_name, "dead")
    await set_clock_back(ledger)
    assert await pause_remaining(ledger, "arxiv") == 0.0
    async with throttle(30.0).turn(takes=1.0):
        pass


def test_a_policy_window_that_began_in_the_future_begins_now() -> None:
    bounds = Bounds(start=4, min_calls=1, max_calls=8)
    dumped = PolicyState.first(bounds, now=5_000.0).dump()
    assert PolicyState.load(dumped, bounds, now=1_000.0).began == 1_000.0


def _add_batch(connection: Connection) -> None:
    connection.execute(
        text(
            "INSERT INTO llm_batches (id, provider, state, questions, created_at, fenced_until) "
            f"VALUES ('batch', 'p', '{BatchState.SENDING.value}', 1, 0, 0)"
        )
    )
