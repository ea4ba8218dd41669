import pytest

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.requests import DeadLetterFilter, RedrivenCopy
from switchyard.services.engine.records.states import DeadLetterState, State
from tests.support.made import NOW, claim, finish, letter, new_job


async def state_of(ledger: Ledger, job_id: str = "job-1") -> State | None:
    record = await ledger.job_reads.get(job_id)
    return None if record is None else record.state


async def test_a_letter_marks_its_waiting_job_dead(ledger: Ledger) -> None:
    await ledger.jobs.record(new_job())
    await ledger.dead_letters.index_dead(
        [letter(reason="expired", body=b'{"a":1}', headers={"x-death": [1]})]
    )
    record = await ledger.job_reads.get("job-1")
    assert record is not None
    assert (record.state, record.reason) == (State.DEAD, "expired")
    stored = await ledger.dead_letters.get_dead("job-1")
    assert stored is not None
    assert (stored.body, stored.headers, stored.copies) == (b'{"a":1}', {"x-death": [1]}, 1)
    assert stored.state == "waiting"


async def test_any_bytes_can_be_a_letter(ledger: Ledger) -> None:
    body = bytes(range(256))
    await ledger.dead_letters.index_dead(
        [letter(None, "malformed", id="raw-1", body=body, error_message="a\x00\ud800")]
    )
    stored = await ledger.dead_letters.get_dead("raw-1")
    assert stored is not None
    assert (stored.body, stored.job_id) == (body, None)


async def test_letters_of_one_id_are_counted(ledger: Ledger) -> None:
    await ledger.dead_letters.index_dead([letter(), letter(dead_at=NOW + 40)])
    await ledger.dead_letters.index_dead([letter(dead_at=NOW + 50)])
    stored = await ledger.dead_letters.get_dead("job-1")
    assert stored is not None
    assert (stored.copies, stored.first_at, stored.dead_at) == (3, NOW + 30, NOW + 30)


async def test_a_letter_that_comes_back_after_a_redrive_waits_again(ledger: Ledger) -> None:
    await ledger.dead_letters.index_dead([letter(), letter()])
    assert (
        await ledger.dead_letters.mark_dead_state(["job-1", "x"], DeadLetterState.REDRIVEN, NOW)
        == 1
    )
    await ledger.dead_letters.index_dead([letter(redrives=1)])
    stored = await ledger.dead_letters.get_dead("job-1")
    assert stored is not None
    assert (stored.state, stored.copies, stored.redrives) == ("waiting", 1, 1)


@pytest.mark.parametrize("end", [State.SUCCEEDED, State.CANCELLED])
async def test_a_letter_of_a_finished_job_changes_nothing(ledger: Ledger, end: State) -> None:
    await ledger.jobs.claim(claim())
    await ledger.jobs.finish(finish(end))
    await ledger.dead_letters.index_dead([letter()])
    assert await state_of(ledger) is end


async def test_a_letter_does_not_bury_a_newer_redrive(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim(redrives=1))
    await ledger.dead_letters.index_dead([letter(redrives=0, attempts=3)])
    assert await state_of(ledger) is State.RUNNING


async def test_a_letter_of_an_old_copy_does_not_bury_the_retry(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    await ledger.jobs.finish(finish(State.RETRYING, attempts=1))
    await ledger.dead_letters.index_dead([letter(reason="expired", attempts=0)])
    assert await state_of(ledger) is State.RETRYING
    await ledger.dead_letters.index_dead([letter(reason="expired", attempts=1)])
    assert await state_of(ledger) is State.DEAD


async def test_a_copy_that_never_ran_does_not_bury_the_one_that_runs(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    await ledger.dead_letters.index_dead([letter(reason="expired")])
    assert await state_of(ledger) is State.RUNNING
    assert await ledger.jobs.finish(finish())


async def test_a_letter_from_the_running_attempt_ends_it(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    await ledger.dead_letters.index_dead([letter(reason="exhausted", attempts=1)])
    record = await ledger.job_reads.get("job-1")
    assert record is not None
    assert record.state is State.DEAD
    assert [attempt.outcome for attempt in record.timeline] == ["dead"]
    # Its worker ends it a moment later, which is the same end.
    assert await ledger.jobs.finish(finish(State.DEAD))


async def test_a_redriven_job_is_queued_unless_a_worker_was_faster(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim())
    await ledger.jobs.finish(finish(State.DEAD, attempts=3))
    for _ in range(2):
        await ledger.redrives.record_redriven([RedrivenCopy("job-1", 1)], NOW)
    assert await state_of(ledger) is State.QUEUED
    await ledger.jobs.claim(claim(claim_id="c2", redrives=1))
    await ledger.redrives.record_redriven([RedrivenCopy("job-1", 1)], NOW)
    assert await state_of(ledger) is State.RUNNING


async def test_any_number_of_letters_can_be_marked(ledger: Ledger) -> None:
    await ledger.dead_letters.index_dead([letter("a"), letter("b")])
    ids = ["a", *(f"unknown-{n}" for n in range(40_000))]
    assert await ledger.dead_letters.mark_dead_state(ids, DeadLetterState.PURGED, NOW) == 1
    stored = await ledger.dead_letters.get_dead("b")
    assert stored is not None
    assert stored.state == "waiting"


async def test_dead_letters_are_listed_and_filtered(ledger: Ledger) -> None:
    await ledger.dead_letters.index_dead(
        [
            letter("a", "expired", dead_at=NOW + 1, lane="hot"),
            letter("b", "exhausted", dead_at=NOW + 2, error_type="ValueError"),
            letter("c", "exhausted", dead_at=NOW + 3),
        ]
    )
    page = await ledger.dead_letters.list_dead(limit=2)
    assert [row.id for row in page.items] == ["c", "b"]
    page = await ledger.dead_letters.list_dead(limit=2, cursor=page.next_cursor)
    assert [row.id for row in page.items] == ["a"]
    assert page.next_cursor is None
    for letter_filter, expected_ids in [
        (DeadLetterFilter(reason="exhausted"), ["c", "b"]),
        (DeadLetterFilter(error_type="ValueError"), ["b"]),
        (DeadLetterFilter(lane="hot"), ["a"]),
        (DeadLetterFilter(since=NOW + 3), ["c"]),
        (DeadLetterFilter(state="purged"), []),
    ]:
        page = await ledger.dead_letters.list_dead(letter_filter)
        assert [row.id for row in page.items] == expected_ids
