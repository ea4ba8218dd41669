"""Progress and checkpoints of running jobs: which claim may save them, and how long they stay."""

import asyncio

import pytest

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.progress import (
    ProgressRecord,
    ProgressRequest,
    ReportedProgress,
)
from switchyard.services.engine.records.requests import RedrivenCopy
from switchyard.services.engine.records.results import Cancelled
from switchyard.services.engine.records.states import AttemptOutcome, State
from tests.support.made import NOW, claim, finish, message, new_job


def make_note(
    fraction: float | None = None,
    checkpoint: str | None = None,
    *,
    claim_id: str = "claim-1",
    text: str = "hello",
) -> ProgressRequest:
    progress = None if fraction is None else ReportedProgress(fraction, f"at {fraction:g}")
    job = message(payload={"text": text})
    return ProgressRequest(job, claim_id, NOW + 15, progress=progress, checkpoint=checkpoint)


async def read_progress(ledger: Ledger) -> ProgressRecord | None:
    record = await ledger.job_reads.get("job-1")
    assert record is not None
    (listed,) = (await ledger.job_reads.list_jobs()).items
    assert listed.progress == record.progress
    assert (await ledger.progress.progress(["job-1"])).get("job-1") == record.progress
    return record.progress


async def test_the_last_progress_of_a_job_is_shown_with_it(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    assert await read_progress(ledger) is None
    for fraction in (0.1, 0.4):
        assert await ledger.progress.save(make_note(fraction))
    assert await read_progress(ledger) == ProgressRecord(0.4, "at 0.4", NOW + 15)
    await ledger.jobs.finish(finish())
    assert await read_progress(ledger) == ProgressRecord(0.4, "at 0.4", NOW + 15)


async def test_a_runner_whose_job_was_taken_over_overwrites_nothing(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    await ledger.progress.save(make_note(0.9, '"old"'))
    takeover = claim(claim_id="claim-2", worker_id="worker-2", takeover_from="claim-1")
    answer = await ledger.jobs.claim(takeover)
    assert getattr(answer, "has_checkpoint", None) is True
    assert (
        await read_progress(ledger) is None
    )  # the progress of the dead worker is not that of the new one
    assert await ledger.progress.save(make_note(0.1, '"new"', claim_id="claim-2"))
    assert not await ledger.progress.save(make_note(1.0, '"older"'))
    assert await ledger.progress.last_checkpoint(message()) == '"new"'
    assert await read_progress(ledger) == ProgressRecord(0.1, "at 0.1", NOW + 15)


async def test_progress_of_an_ended_job_is_refused(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    await ledger.jobs.finish(finish())
    assert not await ledger.progress.save(make_note(0.5, "1"))
    assert await read_progress(ledger) is None
    assert await ledger.progress.last_checkpoint(message()) is None


@pytest.mark.parametrize("state", [State.RETRYING, State.QUEUED, State.DEAD])
async def test_a_checkpoint_stays_for_the_next_attempt(ledger: Ledger, state: State) -> None:
    await ledger.jobs.claim(claim())
    await ledger.progress.save(make_note(checkpoint='{"page":3}'))
    await ledger.progress.save(make_note(0.5))
    await ledger.jobs.finish(finish(state, outcome=AttemptOutcome.RETRY))
    assert await ledger.progress.last_checkpoint(message()) == '{"page":3}'
    record = await ledger.job_reads.get("job-1")
    assert record is not None
    assert record.checkpoint_at == NOW + 15


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.CANCELLED])
async def test_a_checkpoint_is_dropped_with_the_last_end_of_its_job(
    ledger: Ledger, state: State
) -> None:
    await ledger.jobs.claim(claim())
    await ledger.progress.save(make_note(checkpoint="1"))
    # A checkpoint that is saved in the same transaction is dropped, too.
    await asyncio.gather(
        ledger.progress.save(make_note(checkpoint="2")), ledger.jobs.finish(finish(state))
    )
    assert await ledger.progress.last_checkpoint(message()) is None


async def test_a_waiting_job_that_is_cancelled_loses_its_checkpoint(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    await ledger.progress.save(make_note(checkpoint="1"))
    await ledger.jobs.finish(finish(State.RETRYING, outcome=AttemptOutcome.RETRY))
    assert await ledger.jobs.cancel("job-1", NOW + 30) == Cancelled()
    assert await ledger.progress.last_checkpoint(message()) is None


async def test_a_checkpoint_counts_only_for_the_payload_it_was_made_of(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    await ledger.progress.save(make_note(checkpoint="1"))
    await ledger.jobs.finish(finish(State.DEAD, attempts=3))
    changed = new_job(message(payload={"text": "another"}, redrives=1))
    await ledger.redrives.record_redriven([RedrivenCopy("job-1", 1, changed)], NOW + 40)
    assert await ledger.progress.last_checkpoint(changed.message) is None
    assert await ledger.progress.last_checkpoint(message()) == "1"


async def test_progress_of_many_jobs_is_saved_in_one_transaction(ledger: Ledger) -> None:
    ids = [f"job-{number}" for number in range(20)]
    await asyncio.gather(*(ledger.jobs.claim(claim(job_id, claim_id=job_id)) for job_id in ids))
    requests = [
        ProgressRequest(message(job_id), job_id, NOW, ReportedProgress(None, job_id), f'"{job_id}"')
        for job_id in ids
    ]
    assert all(await asyncio.gather(*map(ledger.progress.save, requests)))
    assert {
        job_id: record.note for job_id, record in (await ledger.progress.progress(ids)).items()
    } == dict(zip(ids, ids, strict=True))
    checkpoints = [await ledger.progress.last_checkpoint(message(job_id)) for job_id in ids]
    assert checkpoints == [f'"{job_id}"' for job_id in ids]
