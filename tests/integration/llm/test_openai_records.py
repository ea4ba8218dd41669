"""Records of files and batches of the OpenAI-compatible API, on each kind of database."""

from __future__ import annotations

from dataclasses import replace

from switchyard.services.engine.ledger import Ledger
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.records.openai_batches import OpenAiBatch, OpenAiBatchState, OpenAiFile

A_BATCH = OpenAiBatch(
    id="batch_1",
    owner="me",
    state=OpenAiBatchState.VALIDATING,
    created_at=10.0,
    endpoint="/v1/embeddings",
    input_file_id="file-1",
    completion_window="24h",
    expires_at=99.0,
    operation_id="backfill-1",
    metadata={"a": "b"},
)


async def test_files_are_listed_page_by_page_once_they_are_written(ledger: Ledger) -> None:
    records = LlmLedger(ledger).openai
    files = [
        OpenAiFile(f"file-{n}", "me", "in.jsonl", "batch", float(n // 2), 50.0, None)
        for n in range(5)
    ]
    for each in files:
        await records.add_file(each)
    assert await records.list_files("me", limit=10) == []
    for each in files[:4]:
        await records.complete_file(replace(each, size=7))
    pages, after = [], None
    while page := await records.list_files("me", after=after, limit=3):
        pages.append([each.id for each in page])
        after = page[-1].id
    assert pages == [["file-3", "file-2", "file-1"], ["file-0"]]
    oldest = await records.list_files("me", newest_first=False, after="file-1", limit=1)
    assert [each.id for each in oldest] == ["file-2"]
    assert await records.list_files("me", purpose="batch_output", limit=1) == []
    assert await records.file("file-1", "other") is None
    assert await records.file("file-4", "me") is None  # not written yet
    await records.add_batch(A_BATCH)
    old = await records.old_files(60.0, unwritten_before=1.0, limit=10)
    assert {each.id for each in old} == {"file-0", "file-2", "file-3", "file-4"}


async def test_a_batch_moves_only_from_the_states_that_are_named(ledger: Ledger) -> None:
    records = LlmLedger(ledger).openai
    state = OpenAiBatchState
    assert await records.add_batch(A_BATCH) == A_BATCH
    assert await records.add_batch(replace(A_BATCH, endpoint="/v1/completions")) == A_BATCH
    moved = await records.move_batch(
        "batch_1", state.IN_PROGRESS, from_states={state.VALIDATING}, changes={"total": 3}
    )
    assert moved is not None
    assert (moved.state, moved.total) == (state.IN_PROGRESS, 3)
    again = await records.move_batch("batch_1", state.FAILED, from_states={state.VALIDATING})
    assert again == moved
    assert again.moments.keys() == {"in_progress"}
    assert await records.open_batches() == [moved]
    assert await records.count_open("me") == 1
    assert await records.is_read_by_open_batch("file-1")
    assert (await records.drop_ended_batches(60.0, limit=9)).rows.total() == 0
    await records.move_batch("batch_1", state.COMPLETED, from_states={state.IN_PROGRESS})
    assert [each.id for each in await records.list_batches("me", limit=2)] == ["batch_1"]
    assert await records.list_batches("me", after="batch_1", limit=2) == []
    assert await records.job_ends(["no-such-job"]) == {}
    assert (await records.drop_ended_batches(60.0, limit=1)).rows.total() == 1
    assert await records.batch("batch_1") is None
