"""Names in unfinished jobs and waiting letters, which no clean-up may remove."""

from __future__ import annotations

import pytest

from switchyard.services.engine.ledger import Ledger, referenced_keys
from switchyard.services.engine.records.states import DeadLetterState, State
from tests.support.made import NOW, claim, finish, letter, message, new_job


async def test_names_in_open_and_dead_jobs_are_needed_and_in_ended_ones_not(
    ledger: Ledger,
) -> None:
    await ledger.jobs.record(
        new_job(message("open", payload={"a": [{"b": "named"}]}, parent_id="up"))
    )
    for job_id, state in (("dead", State.DEAD), ("done", State.SUCCEEDED)):
        await ledger.jobs.claim(
            claim(message(job_id, payload={"key": f"of-{job_id}"}), claim_id=job_id)
        )
        await ledger.jobs.finish(finish(state, job_id, job_id=job_id))
    needed_names = await ledger.references.names_needed()
    assert {"open", "named", "up", "dead", "of-dead"} <= needed_names
    assert not {"done", "of-done"} & needed_names


async def test_a_job_that_died_before_the_oldest_kept_letters_is_not_needed(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ledger.jobs.claim(claim())
    await ledger.jobs.finish(finish(State.DEAD))
    assert "job-1" in await ledger.references.names_needed()
    monkeypatch.setattr(ledger.clock, "time", lambda: NOW + 8 * 24 * 3600)
    assert "job-1" not in await ledger.references.names_needed()


async def test_names_in_waiting_letters_are_needed(ledger: Ledger) -> None:
    await ledger.dead_letters.index_dead(
        [
            letter("a", body=b'{"payload": {"key": "of-a"}}'),
            letter("b", body=b'{"payload": {"key": "of-b"}}'),
            letter(None, "malformed", id="raw-1", body=bytes(range(256))),
            letter(None, "malformed", id="raw-2", body=b"[" * 100_000),
        ]
    )
    await ledger.dead_letters.mark_dead_state(["b"], DeadLetterState.PURGED, NOW)
    needed_names = await ledger.references.names_needed()
    assert {"a", "of-a"} <= needed_names
    assert "of-b" not in needed_names


async def test_names_are_read_from_all_pages_or_from_jobs_since_a_time(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(referenced_keys, "_PAGE", 2)
    new_jobs = [
        new_job(message(f"job-{n}", payload={"key": f"key-{n}"}), now=NOW + n) for n in range(5)
    ]
    for job in new_jobs:
        await ledger.jobs.record(job)
    await ledger.dead_letters.index_dead([letter(f"letter-{n}") for n in range(5)])
    all_names = await ledger.references.names_needed()
    assert {f"key-{n}" for n in range(5)} | {f"letter-{n}" for n in range(5)} <= all_names
    latest = max([(await ledger.job_reads.get(f"job-{n}")).created_at for n in range(5)])  # type: ignore[union-attr]
    assert "key-4" in await ledger.references.names_needed(since=latest)
    assert await ledger.references.names_needed(since=latest + 1) == set()
