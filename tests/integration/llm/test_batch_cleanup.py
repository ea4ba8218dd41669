"""Delete questions for Batch APIs that no job waits for, and old batches."""

from __future__ import annotations

from sqlalchemy import Connection, text

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.retention import Removal
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.records.llm_batches import BatchItem, ItemState
from switchyard.services.llm.records.llm_spend import CallState, LlmCall, Requester
from tests.support.made import new_job
from tests.support.small_steps import remove_in_steps


async def test_abandoned_questions_are_deleted_in_steps_and_their_reservations_end(
    ledger: Ledger,
) -> None:
    records = LlmLedger(ledger).batches

    def count(connection: Connection) -> list[int]:
        tables = ("llm_batch_items", "llm_batch_waits", "llm_batches")
        return [connection.scalar(text(f"SELECT count(*) FROM {name}")) or 0 for name in tables]

    for number in range(6):
        call = LlmCall(f"call-{number}", CallState.OPEN, Requester(), "p", "m", {}, 1.0)
        item = BatchItem(f"k{number}", ItemState.COLLECTED, "p", {"asked": {}}, call)
        await records.collect_llm_question(item, f"job-{number}", size=10)
    freed_calls: list[str] = []

    async def clean_up(max_age: float, limit: int) -> Removal:
        calls, removal = await records.delete_old_llm_batches(max_age=max_age, limit=limit)
        freed_calls.extend(each.id for each in calls)
        return removal

    assert (await remove_in_steps(lambda limit: clean_up(60, limit))).total() == 0
    await ledger.jobs.record(new_job("job-0"))
    await records.open_llm_batch(
        "batch-1", "p", max_wait=0, max_questions=1, max_bytes=1000
    )  # a batch of one question
    rows = await remove_in_steps(lambda limit: clean_up(-60, limit))
    assert rows == {"llm_batch_items": 5, "llm_batch_waits": 5}
    assert len(freed_calls) == 5
    assert await ledger.core.database.read(count) == [1, 1, 1], "the question that was sent stays"
