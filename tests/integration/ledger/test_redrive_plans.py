"""Only the process that holds a redrive may plan what it sends, or forget what was planned."""

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.bulk import BulkHold

HOLD_SECONDS = 60.0


async def begin_redrive(ledger: Ledger, holder: str) -> None:
    """Make a redrive that `holder` holds, with a hold that others may take at once."""
    await ledger.bulk.create_bulk(
        "redrive-1", kind="redrive", title="all", spec={}, created_by="test"
    )
    assert await ledger.bulk.claim_bulk(BulkHold(holder, 0.0), kinds=["redrive"]) is not None


async def test_a_holder_plans_and_forgets(ledger: Ledger) -> None:
    await begin_redrive(ledger, "first")
    assert await ledger.redrives.record_plan("redrive-1", "first", {"a": 1, "b": 1})
    assert await ledger.redrives.forget_planned("redrive-1", "first", ["a"])
    assert await ledger.redrives.planned_redrives("redrive-1", ["a", "b"]) == {"b": 1}


async def test_a_process_that_lost_an_operation_forgets_nothing_of_it(ledger: Ledger) -> None:
    await begin_redrive(ledger, "first")
    assert await ledger.redrives.record_plan("redrive-1", "first", {"a": 1})
    assert (
        await ledger.bulk.claim_bulk(BulkHold("second", HOLD_SECONDS), kinds=["redrive"])
        is not None
    )
    assert await ledger.redrives.record_plan("redrive-1", "second", {"a": 2, "b": 1})
    assert not await ledger.redrives.forget_planned("redrive-1", "first", ["a", "b"])
    assert await ledger.redrives.planned_redrives("redrive-1", ["a", "b"]) == {"a": 2, "b": 1}


async def test_a_process_that_lost_an_operation_plans_nothing_of_it(ledger: Ledger) -> None:
    await begin_redrive(ledger, "first")
    assert (
        await ledger.bulk.claim_bulk(BulkHold("second", HOLD_SECONDS), kinds=["redrive"])
        is not None
    )
    assert await ledger.redrives.record_plan("redrive-1", "second", {"a": 2})
    assert not await ledger.redrives.record_plan("redrive-1", "first", {"a": 1, "b": 1})
    assert await ledger.redrives.planned_redrives("redrive-1", ["a", "b"]) == {"a": 2}
