"""The gate before LLM servers: limits and pauses that hold for the whole fleet."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from switchyard.broker.task_supervisor import end_tasks
from switchyard.services.common.settings import LlmServer, Settings
from switchyard.services.engine.ledger import Ledger
from switchyard.services.llm.concurrency_policy import Bounds, CallEnd, FixedPolicy
from switchyard.services.llm.gate import (
    Admission,
    CallOutcome,
    FleetCall,
    LlmGate,
    Urgency,
    state_after_call,
)
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.ledger.llm_slots import HOT_WAIT_TTL, Change
from switchyard.services.llm.llm_errors import LlmSaturated
from switchyard.services.llm.records.llm_servers import (
    TRIAL_AFTER_FAILURES,
    LlmServerState,
    ServerPaused,
    SlotAcquired,
    SlotsFull,
)
from tests.support.eventually import eventually

CALL_TIME = 0.02
"""Seconds that a call of the busy process takes."""
HOT, BACKFILL = Urgency.from_priority("hot", 5), Urgency.from_priority("backfill", 5)
SERVER = LlmServer(base_url="http://there/v1")


async def admit(gate: LlmGate, urgency: Urgency, **options: Any) -> Admission:
    admission = await gate.enter(urgency, **options)
    assert isinstance(admission, Admission)
    return admission


def settings(**values: object) -> Settings:
    defaults = {"llm_base_url": "http://there/v1", "llm_concurrency_min": 1, "llm_pacing": "fixed"}
    return Settings.model_validate({**defaults, **values})


def are_waiting(gate: LlmGate, number: int) -> bool:
    return len(gate._waiting) == number


async def take_slot(ledger: Ledger, slot: str, *, limit: int = 3, ttl: float = 30.0) -> object:
    return await LlmLedger(ledger).slots.take_llm_slot(
        "default", slot, "somebody", ttl=ttl, is_hot=True, first_limit=limit, max_limit=limit
    )


async def test_concurrent_requests_get_no_more_slots_than_the_limit(ledger: Ledger) -> None:
    answers = await asyncio.gather(*(take_slot(ledger, f"slot-{n}") for n in range(20)))
    assert answers.count(SlotAcquired()) == 3
    assert answers.count(SlotsFull(3, 3)) == 17
    await LlmLedger(ledger).slots.end_llm_slot("default", "slot-0", None)
    admitted = [n for n, answer in enumerate(answers) if answer == SlotAcquired()]
    await LlmLedger(ledger).slots.end_llm_slot("default", f"slot-{admitted[-1]}", None)
    assert await take_slot(ledger, "next") == SlotAcquired()


async def test_a_limit_that_shrank_lets_nobody_in_until_there_is_room(ledger: Ledger) -> None:
    for n in range(3):
        assert await take_slot(ledger, f"slot-{n}") == SlotAcquired()
    await LlmLedger(ledger).slots.end_llm_slot(
        "default", "slot-0", lambda state, *_: replace(state, limit=1.0)
    )
    assert await take_slot(ledger, "next") == SlotsFull(2, 1)
    await LlmLedger(ledger).slots.end_llm_slot("default", "slot-1", None)
    assert await take_slot(ledger, "next") == SlotsFull(1, 1)
    await LlmLedger(ledger).slots.end_llm_slot("default", "slot-2", None)
    assert await take_slot(ledger, "next") == SlotAcquired()


async def test_slots_of_a_killed_worker_are_freed(ledger: Ledger) -> None:
    assert await take_slot(ledger, "slot-0", limit=1, ttl=0.3) == SlotAcquired()
    assert await take_slot(ledger, "slot-1", limit=1) == SlotsFull(1, 1)
    assert (
        await LlmLedger(ledger).slots.renew_llm_slots({"slot-0": "default"}, "somebody", 0.3)
        == set()
    )

    async def is_free() -> bool:
        return await take_slot(ledger, "slot-1", limit=1) == SlotAcquired()

    assert await eventually(is_free)


async def test_calls_of_a_worker_that_was_frozen_count_again_when_it_wakes(ledger: Ledger) -> None:
    async with LlmGate.open(settings(llm_concurrency_max=1), ledger) as frozen:
        admission = await admit(frozen, HOT, timeout=1)
        await LlmLedger(ledger).slots.end_llm_slot(
            "default", admission.slot, None
        )  # as if its TTL had ended
        assert await take_slot(ledger, "another's", limit=1) == SlotAcquired()
        await frozen._renew()
        assert await take_slot(ledger, "next", limit=1) == SlotsFull(2, 1)
        await frozen.leave(admission, None)
        await frozen._renew()
        assert await take_slot(ledger, "next", limit=1) == SlotsFull(1, 1)


async def test_a_pause_holds_for_all_and_only_grows(ledger: Ledger) -> None:
    def pausing(seconds: float) -> Change:
        outcome = CallOutcome(CallEnd.REFUSED, pause=seconds, reason="slow down")
        return lambda state, _, now: state_after(state, outcome, now)

    for seconds in (20.0, 5.0):
        await LlmLedger(ledger).slots.end_llm_slot("default", "none", pausing(seconds))
    answer = await take_slot(ledger, "slot")
    assert isinstance(answer, ServerPaused)
    assert 15 < answer.seconds <= 20
    assert answer.reason == "slow down"
    (report,) = await LlmLedger(ledger).slots.llm_servers()
    assert 15 < report.paused_for <= 20


async def test_a_retry_after_stops_other_processes_at_once(ledger: Ledger) -> None:
    async with (
        LlmGate.open(settings(), ledger) as first_gate,
        LlmGate.open(settings(), ledger) as second_gate,
    ):
        admission = await admit(first_gate, HOT, timeout=1)
        await first_gate.leave(admission, CallOutcome(CallEnd.REFUSED, pause=60, reason="429"))
        began = time.monotonic()
        with pytest.raises(LlmSaturated, match="429") as raised:
            await admit(second_gate, HOT, timeout=30)
        assert time.monotonic() - began < 15, "the call does not wait for the end of the pause"
        assert raised.value.after is not None
        assert 55 < raised.value.after < 70
        assert not raised.value.counts


async def test_a_short_pause_is_waited_for_in_place(plain_ledger: Ledger) -> None:
    async with LlmGate.open(settings(), plain_ledger) as gate:
        admission = await admit(gate, HOT, timeout=1)
        began = time.monotonic()
        await gate.leave(admission, CallOutcome(CallEnd.REFUSED, pause=0.4))
        await admit(gate, HOT, timeout=30)
        assert 0.4 <= time.monotonic() - began < 5


async def test_the_most_urgent_call_gets_the_next_slot(plain_ledger: Ledger) -> None:
    async with LlmGate.open(settings(llm_concurrency=1), plain_ledger) as gate:
        held = await admit(gate, HOT, timeout=1)
        order: list[str] = []

        async def ask(name: str, urgency: Urgency) -> None:
            admission = await admit(gate, urgency, timeout=30)
            order.append(name)
            await gate.leave(admission, None)

        waiting = []
        for number, (name, urgency) in enumerate(
            [("backfill", BACKFILL), ("hot 5", HOT), ("hot 10", Urgency.from_priority("hot", 10))]
        ):
            waiting.append(asyncio.create_task(ask(name, urgency)))
            await eventually(partial(are_waiting, gate, number + 1))
        await gate.leave(held, None)
        await asyncio.gather(*waiting)
        assert order == ["hot 10", "hot 5", "backfill"]


async def test_other_lanes_leave_a_slot_for_hot_calls(plain_ledger: Ledger) -> None:
    async with LlmGate.open(settings(llm_concurrency=3), plain_ledger) as gate:
        await admit(gate, BACKFILL, timeout=1)
        await admit(gate, BACKFILL, timeout=1)
        with pytest.raises(LlmSaturated):
            await admit(gate, BACKFILL, timeout=0.3)
        await admit(gate, HOT, timeout=1)


async def test_a_hot_call_is_next_even_if_another_process_has_waiting_calls(
    ledger: Ledger,
) -> None:
    """A server that takes one call at a time has no slot that is kept for hot calls."""
    one_at_a_time = settings(llm_concurrency=1, llm_concurrency_max=1)
    async with (
        LlmGate.open(one_at_a_time, ledger) as hot_gate,
        LlmGate.open(one_at_a_time, ledger) as busy_gate,
    ):
        begun_calls: list[None] = []

        async def keep_calling() -> None:
            while True:
                admission = await admit(busy_gate, BACKFILL, timeout=30)
                begun_calls.append(None)
                await asyncio.sleep(CALL_TIME)
                await busy_gate.leave(admission, None)

        calls = [asyncio.create_task(keep_calling()) for _ in range(3)]
        try:
            for _ in range(3):
                await eventually(partial(are_waiting, busy_gate, 2))
                before = len(begun_calls)
                admission = await admit(hot_gate, HOT, timeout=30)
                # The call under way, and one that began before the hot call asked for a slot.
                assert len(begun_calls) - before <= 2
                await hot_gate.leave(admission, None)
        finally:
            await end_tasks(*calls)


async def test_a_hot_call_that_gives_up_waiting_blocks_no_other(plain_ledger: Ledger) -> None:
    one_at_a_time = settings(llm_concurrency=1, llm_concurrency_max=1)
    async with LlmGate.open(one_at_a_time, plain_ledger) as gate:
        held = await admit(gate, BACKFILL, timeout=1)
        with pytest.raises(LlmSaturated):
            await admit(gate, HOT, timeout=0.2)
        await gate.leave(held, None)
        await admit(gate, BACKFILL, timeout=HOT_WAIT_TTL * 3)


async def test_a_waiting_call_that_is_cancelled_blocks_no_other(plain_ledger: Ledger) -> None:
    async with LlmGate.open(settings(llm_concurrency=1), plain_ledger) as gate:
        held = await admit(gate, HOT, timeout=1)
        first = asyncio.create_task(admit(gate, HOT, timeout=30))
        second = asyncio.create_task(admit(gate, HOT, timeout=30))
        await eventually(lambda: len(gate._waiting) == 2)
        first.cancel()
        await asyncio.wait([first])
        await gate.leave(held, None)
        assert (await second).server.name == "default"


async def test_slots_are_freed_when_the_gate_closes(plain_ledger: Ledger) -> None:
    async with LlmGate.open(settings(llm_concurrency=1), plain_ledger) as gate:
        await admit(gate, HOT, timeout=1)
    async with LlmGate.open(settings(llm_concurrency=1), plain_ledger) as gate:
        await admit(gate, HOT, timeout=1)


async def test_servers_are_asked_in_order_and_the_next_when_one_is_paused(
    plain_ledger: Ledger,
) -> None:
    providers = [
        {"name": "own", "base_url": "http://own/v1"},
        {"name": "cloud", "base_url": "http://cloud/v1", "order": 1},
    ]
    async with AsyncExitStack() as stack:
        opening = LlmGate.open(settings(llm_providers=providers), plain_ledger)
        gate = await stack.enter_async_context(opening)
        entries = [await admit(gate, HOT, timeout=1) for _ in range(5)]
        assert {each.server.name for each in entries} == {"own"}
        await gate.leave(entries[0], CallOutcome(CallEnd.REFUSED, pause=60))
        assert (await admit(gate, HOT, timeout=1)).server.name == "cloud"
        with pytest.raises(LlmSaturated):
            await admit(gate, HOT, timeout=1, excluded={"cloud"})


async def test_weights_decide_which_server_is_asked_first(plain_ledger: Ledger) -> None:
    providers = [
        {"name": "large", "base_url": "http://large/v1", "weight": 9},
        {"name": "small", "base_url": "http://small/v1", "weight": 1},
    ]
    shared = settings(llm_providers=providers, llm_concurrency=100, llm_concurrency_max=100)
    async with LlmGate.open(shared, plain_ledger) as gate:
        names = [(await admit(gate, HOT, timeout=1)).server.name for _ in range(90)]
        assert names.count("large") > 60
        assert names.count("small") > 0


def state_after(state: LlmServerState, outcome: CallOutcome, now: float) -> LlmServerState:
    call = FleetCall(outcome, 1, others_wait=False)
    return state_after_call(state, call, now, policy=FixedPolicy(), bounds=Bounds(), jitter=1.0)


def test_a_server_that_keeps_failing_is_paused_longer_each_time() -> None:
    failed = CallOutcome(CallEnd.FAILED, is_failure=True, reason="away")
    state, now, pauses = LlmServerState(16), 1000.0, []
    for _ in range(TRIAL_AFTER_FAILURES + 6):
        state = state_after(state, failed, now)
        pauses.append(max(0.0, state.paused_until - now))
        now = max(now, state.paused_until)
    assert pauses == [0, 0, 0, 0, 1, 2, 4, 8, 16, 30, 30]
    assert state_after(state, CallOutcome(CallEnd.ANSWERED), now).failures == 0


def test_calls_that_fail_together_count_once() -> None:
    failed = CallOutcome(CallEnd.FAILED, is_failure=True)
    state = LlmServerState(16)
    for _ in range(40):
        state = state_after(state, failed, 1000.0)
    assert state.failures == TRIAL_AFTER_FAILURES
    assert state.paused_until == 1001.0


async def test_after_failures_one_call_at_a_time_tries_the_server(plain_ledger: Ledger) -> None:
    await take_slot(plain_ledger, "first")
    await LlmLedger(plain_ledger).slots.end_llm_slot(
        "default", "first", lambda state, *_: replace(state, failures=TRIAL_AFTER_FAILURES)
    )
    assert await take_slot(plain_ledger, "one") == SlotAcquired()
    assert await take_slot(plain_ledger, "two") == SlotsFull(1, 1)
    await LlmLedger(plain_ledger).slots.end_llm_slot(
        "default",
        "one",
        lambda state, _, now: state_after(state, CallOutcome(CallEnd.ANSWERED), now),
    )
    assert await take_slot(plain_ledger, "two") == SlotAcquired()
    assert await take_slot(plain_ledger, "three") == SlotAcquired()
