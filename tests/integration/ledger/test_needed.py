"""What jobs that are not over name, so that nobody cleans it away."""

from __future__ import annotations

import pytest

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger import referenced_keys as needed
from switchyard.services.engine.records.states import DeadLetterState, State
from tests.support.made import NOW, claim, finish, letter, message, new_job


async def test_open_and_dead_jobs_name_what_is_needed_and_ended_ones_do_not(
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
    needed_now = await ledger.references.names_needed()
    assert {"open", "named", "up", "dead", "of-dead"} <= needed_now
    assert not {"done", "of-done"} & needed_now


async def test_what_died_longer_ago_than_letters_are_kept_is_not_needed(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ledger.jobs.claim(claim())
    await ledger.jobs.finish(finish(State.DEAD))
    assert "job-1" in await ledger.references.names_needed()
    monkeypatch.setattr(ledger.clock, "time", lambda: NOW + 8 * 24 * 3600)
    assert "job-1" not in await ledger.references.names_needed()


async def test_letters_that_wait_name_what_is_needed(ledger: Ledger) -> None:
    await ledger.dead_letters.index_dead(
        [
            letter("a", body=b'{"payload": {"key": "of-a"}}'),
            letter("b", body=b'{"payload": {"key": "of-b"}}'),
            letter(None, "malformed", id="raw-1", body=bytes(range(256))),
            letter(None, "malformed", id="raw-2", body=b"[" * 100_000),
        ]
    )
    await ledger.dead_letters.mark_dead_state(["b"], DeadLetterState.PURGED, NOW)
    needed_now = await ledger.references.names_needed()
    assert {"a", "of-a"} <= needed_now
    assert "of-b" not in needed_now


async def test_all_pages_are_read_and_later_ones_alone_where_that_is_asked(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needed, "_PAGE", 2)
    made = [
        new_job(message(f"job-{n}", payload={"key": f"key-{n}"}), now=NOW + n) for n in range(5)
    ]
    for job in made:
        await ledger.jobs.record(job)
    await ledger.dead_letters.index_dead([letter(f"letter-{n}") for n in range(5)])
    everything = await ledger.references.names_needed()
    assert {f"key-{n}" for n in range(5)} | {f"letter-{n}" for n in range(5)} <= everything
    latest = max([(await ledger.job_reads.get(f"job-{n}")).created_at for n in range(5)])  # type: ignore[union-attr]
    assert "key-4" in await ledger.references.names_needed(since=latest)
    assert await ledger.references.names_needed(since=latest + 1) == set()
