"""Jobs of publishers that know nothing of the ledger, and copies: each job runs once."""

import time
from typing import Any

import pytest

from switchyard.services.engine.records.states import State
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.system import RETRY_DELAYS, System


async def test_a_job_of_a_foreign_publisher_gets_a_record(system: System) -> None:
    message = await system.publish_foreign("backfill.noop", {"n": 3}, source="elsewhere")
    assert await system.state(message.job_id) is None
    await system.start_worker("llm")
    record = await system.wait_for_state(message.job_id, State.SUCCEEDED)
    assert (record.payload, record.result) == ({"n": 3}, {"n": 3})
    assert (record.lane, record.routing_key) == ("backfill", "backfill.noop")
    assert record.source == "elsewhere"


async def test_copies_of_one_job_run_once(system: System) -> None:
    first = await system.start_worker("llm")
    second = await system.start_worker("llm")
    for _ in range(6):
        await system.publish_foreign("hot.gated", job_id="one")
    await journal.started("one")
    for _ in range(6):
        await system.publish_foreign("hot.gated", job_id="one")
    journal.release("one")
    await system.wait_for_state("one", State.SUCCEEDED)
    counters = [running.worker.counters for running in (first, second)]
    await eventually(lambda: sum(counts.skipped for counts in counters) == 11)
    assert journal.runs("one") == 1
    await system.stop_workers()
    assert await system.ready("hot.llm") == 0


async def test_a_copy_of_a_running_job_is_not_claimed_over_and_over(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that is put back into its queue would come again at once, while the job runs."""
    worker = await system.start_worker("llm")
    claims = 0
    claim = system.ledger.jobs.claim

    async def count_and_claim(request: Any) -> Any:
        nonlocal claims
        claims += 1
        return await claim(request)

    monkeypatch.setattr(system.ledger.jobs, "claim", count_and_claim)
    for _ in range(2):
        await system.publish_foreign("hot.gated", job_id="one")
    await eventually(lambda: claims >= 2 and worker.worker.running == 1)
    began, claims_before = time.monotonic(), claims
    others = [await system.publish("hot.noop") for _ in range(20)]
    await system.wait_until_all(others, State.SUCCEEDED)
    retry_rounds = (time.monotonic() - began) / RETRY_DELAYS[0]
    assert claims - claims_before - len(others) <= retry_rounds + 2
    journal.release("one")
    await system.wait_for_state("one", State.SUCCEEDED)
