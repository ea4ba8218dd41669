import pytest

from switchyard.services.engine.dead.causes import cause_of
from switchyard.services.engine.dead.indexing import fingerprint_of
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.requests import DeadLetterFilter
from switchyard.services.engine.records.results import DeadLetter
from switchyard.services.engine.records.states import DeadLetterState
from tests.support.made import NOW, letter

HOUR = 3600.0


def letter_of_cause(job_id: str, message: str, **changes: object):
    fingerprint = cause_of(
        "exhausted", "summarize_content", "ValueError", message, None
    ).fingerprint
    return letter(
        job_id,
        "exhausted",
        error_type="ValueError",
        error_message=message,
        job_type="summarize_content",
        fingerprint=fingerprint,
        **changes,
    )


async def test_letters_of_one_cause_are_a_group(ledger: Ledger) -> None:
    await ledger.dead_letters.index_dead(
        [
            *(letter_of_cause(f"a{n}", f"no page {n}", dead_at=NOW - n * HOUR) for n in range(30)),
            *(letter_of_cause(f"b{n}", "disk full", dead_at=NOW - 100 + n) for n in range(3)),
        ]
    )
    first, second = await ledger.dead_letters.dead_groups(now=NOW)
    assert (first.count, first.first_at, first.last_at) == (30, NOW - 29 * HOUR, NOW)
    assert first.trend == (1,) * 24
    assert (first.sample.id, first.sample.error_message) == ("a0", "no page 0")
    assert (second.count, second.trend) == (3, (0,) * 23 + (3,))
    assert second.sample.id == "b2"
    assert [group.count for group in await ledger.dead_letters.dead_groups(limit=1, now=NOW)] == [
        30
    ]

    letter_filter = DeadLetterFilter(group=first.fingerprint[:6], state="waiting")
    assert await ledger.dead_letters.count_dead(letter_filter) == 30
    assert len((await ledger.dead_letters.list_dead(letter_filter)).items) == 30


async def test_groups_hold_the_letters_of_the_filtered_state(ledger: Ledger) -> None:
    await ledger.dead_letters.index_dead(
        [letter_of_cause("a", "disk full"), letter_of_cause("b", "disk full")]
    )
    await ledger.dead_letters.mark_dead_state(["a"], DeadLetterState.PURGED, NOW)
    assert [group.count for group in await ledger.dead_letters.dead_groups()] == [1]
    assert [
        group.sample.id
        for group in await ledger.dead_letters.dead_groups(
            letter_filter=DeadLetterFilter(state="purged")
        )
    ] == ["a"]
    assert [
        group.count
        for group in await ledger.dead_letters.dead_groups(letter_filter=DeadLetterFilter())
    ] == [2]
    assert (
        await ledger.dead_letters.dead_groups(letter_filter=DeadLetterFilter(state="dropped")) == []
    )


async def test_letters_without_a_fingerprint_are_grouped_later(ledger: Ledger) -> None:
    await ledger.dead_letters.index_dead(
        [letter(f"old{n}", error_message=f"no page {n}") for n in range(1_100)]
    )
    assert await ledger.dead_letters.dead_groups() == []
    assert await ledger.dead_letters.group_letters(fingerprint_of) == 1_100
    assert [group.count for group in await ledger.dead_letters.dead_groups()] == [1_100]
    assert await ledger.dead_letters.group_letters(_refuse_to_group) == 0


def _refuse_to_group(dead_letter: DeadLetter) -> str:
    raise AssertionError(f"{dead_letter.id} has its group")


async def test_letters_are_filtered_by_ids_and_time(ledger: Ledger) -> None:
    await ledger.dead_letters.index_dead([letter(f"a{n}", dead_at=NOW + n) for n in range(5)])
    ids = frozenset({"a1", "a3", *(f"unknown-{n}" for n in range(40_000))})
    assert await ledger.dead_letters.count_dead(DeadLetterFilter(ids=ids)) == 2
    between = DeadLetterFilter(since=NOW + 1, until=NOW + 3)
    assert [
        dead_letter.id for dead_letter in (await ledger.dead_letters.list_dead(between)).items
    ] == [
        "a3",
        "a2",
        "a1",
    ]
    in_order = await ledger.dead_letters.letters_in(DeadLetterFilter(), states=["waiting"], limit=2)
    assert [dead_letter.id for dead_letter in in_order] == ["a0", "a1"]
    last = in_order[-1]
    following = await ledger.dead_letters.letters_in(
        DeadLetterFilter(), states=["waiting"], after=(last.dead_at, last.id)
    )
    assert [dead_letter.id for dead_letter in following] == ["a2", "a3", "a4"]


@pytest.mark.parametrize("limit", [0, 1_001])
async def test_the_number_of_groups_is_bounded(ledger: Ledger, limit: int) -> None:
    with pytest.raises(ValueError, match="limit"):
        await ledger.dead_letters.dead_groups(limit=limit)
