"""What running jobs say of themselves: whose word counts, and for how long it is kept."""

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


def note(
    fraction: float | None = None,
    checkpoint: str | None = None,
    *,
    claim_id: str = "claim-1",
    text: str = "hello",
) -> ProgressRequest:
    said = None if fraction is None else ReportedProgress(fraction, f"at {fraction:g}")
    job = message(payload={"text": text})
    return ProgressRequest(job, claim_id, NOW + 15, progress=said, checkpoint=checkpoint)


async def progress_of(ledger: Ledger) -> ProgressRecord | None:
    record = await ledger.job_reads.get("job-1")
    assert record is not None
    (listed,) = (await ledger.job_reads.list_jobs()).items
    assert listed.progress == record.progress
    assert (await ledger.progress.progress(["job-1"])).get("job-1") == record.progress
    return record.progress


async def test_the_last_word_of_a_running_job_is_shown_with_it(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    assert await progress_of(ledger) is None
    for fraction in (0.1, 0.4):
        assert await ledger.progress.save(note(fraction))
    assert await progress_of(ledger) == ProgressRecord(0.4, "at 0.4", NOW + 15)
    await ledger.jobs.finish(finish())
    assert await progress_of(ledger) == ProgressRecord(0.4, "at 0.4", NOW + 15)


async def test_a_runner_whose_job_was_taken_over_overwrites_nothing(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    await ledger.progress.save(note(0.9, '"old"'))
    taken = claim(claim_id="claim-2", worker_id="worker-2", takeover_from="claim-1")
    answer = await ledger.jobs.claim(taken)
    assert getattr(answer, "has_checkpoint", None) is True
    assert await progress_of(ledger) is None  # what the dead one has said is not how far it is
    assert await ledger.progress.save(note(0.1, '"new"', claim_id="claim-2"))
    assert not await ledger.progress.save(note(1.0, '"older"'))
    assert await ledger.progress.last_checkpoint(message()) == '"new"'
    assert await progress_of(ledger) == ProgressRecord(0.1, "at 0.1", NOW + 15)


async def test_nobody_notes_anything_of_a_job_that_has_ended(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    await ledger.jobs.finish(finish())
    assert not await ledger.progress.save(note(0.5, "1"))
    assert await progress_of(ledger) is None
    assert await ledger.progress.last_checkpoint(message()) is None


@pytest.mark.parametrize("state", [State.RETRYING, State.QUEUED, State.DEAD])
async def test_a_check_point_is_there_for_the_next_attempt(ledger: Ledger, state: State) -> None:
    await ledger.jobs.claim(claim())
    await ledger.progress.save(note(checkpoint='{"page":3}'))
    await ledger.progress.save(note(0.5))
    await ledger.jobs.finish(finish(state, outcome=AttemptOutcome.RETRY))
    assert await ledger.progress.last_checkpoint(message()) == '{"page":3}'
    record = await ledger.job_reads.get("job-1")
    assert record is not None
    assert record.checkpoint_at == NOW + 15


@pytest.mark.parametrize("state", [State.SUCCEEDED, State.CANCELLED])
async def test_a_check_point_goes_with_a_job_that_never_runs_again(
    ledger: Ledger, state: State
) -> None:
    await ledger.jobs.claim(claim())
    await ledger.progress.save(note(checkpoint="1"))
    # Also one of the same transaction.
    await asyncio.gather(
        ledger.progress.save(note(checkpoint="2")), ledger.jobs.finish(finish(state))
    )
    assert await ledger.progress.last_checkpoint(message()) is None


async def test_a_waiting_job_that_is_called_off_loses_its_check_point(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    await ledger.progress.save(note(checkpoint="1"))
    await ledger.jobs.finish(finish(State.RETRYING, outcome=AttemptOutcome.RETRY))
    assert await ledger.jobs.cancel("job-1", NOW + 30) == Cancelled()
    assert await ledger.progress.last_checkpoint(message()) is None


async def test_a_check_point_belongs_to_the_payload_that_it_was_made_of(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    await ledger.progress.save(note(checkpoint="1"))
    await ledger.jobs.finish(finish(State.DEAD, attempts=3))
    changed = new_job(message(payload={"text": "another"}, redrives=1))
    await ledger.redrives.record_redriven([RedrivenCopy("job-1", 1, changed)], NOW + 40)
    assert await ledger.progress.last_checkpoint(changed.message) is None
    assert await ledger.progress.last_checkpoint(message()) == "1"


async def test_many_jobs_are_noted_in_one_transaction(ledger: Ledger) -> None:
    ids = [f"job-{number}" for number in range(20)]
    await asyncio.gather(*(ledger.jobs.claim(claim(each, claim_id=each)) for each in ids))
    said = [
        ProgressRequest(message(each), each, NOW, ReportedProgress(None, each), f'"{each}"')
        for each in ids
    ]
    assert all(await asyncio.gather(*map(ledger.progress.save, said)))
    assert {
        each: told.note for each, told in (await ledger.progress.progress(ids)).items()
    } == dict(zip(ids, ids, strict=True))
    kept = [await ledger.progress.last_checkpoint(message(each)) for each in ids]
    assert kept == [f'"{each}"' for each in ids]
