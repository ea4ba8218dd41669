import asyncio
from dataclasses import replace
from typing import Any

import pytest

from switchyard.services.engine.ledger import Ledger
from switchyard.services.pipeline.ledger import PipelineLedger


async def test_the_same_content_is_the_same_document(ledger: Ledger) -> None:
    first, created = await PipelineLedger(ledger).documents.upsert_document(
        "hash-1", filename="a.pdf", size_bytes=3
    )
    assert created
    assert (first.filename, first.completed_stages) == ("a.pdf", ())
    again, created = await PipelineLedger(ledger).documents.upsert_document(
        "hash-1", filename="b.pdf"
    )
    assert (again, created) == (first, False)


async def test_the_same_source_is_the_same_document(ledger: Ledger) -> None:
    first, _ = await PipelineLedger(ledger).documents.upsert_document(
        "hash-1", source="arxiv:2401.1"
    )
    again, created = await PipelineLedger(ledger).documents.upsert_document(
        "hash-2", source="arxiv:2401.1"
    )
    assert (again.id, created) == (first.id, False)


async def test_the_content_counts_more_than_the_source(ledger: Ledger) -> None:
    await PipelineLedger(ledger).documents.upsert_document("hash-1", source="s-1")
    second, _ = await PipelineLedger(ledger).documents.upsert_document("hash-2", source="s-2")
    stored, _ = await PipelineLedger(ledger).documents.upsert_document("hash-2", source="s-1")
    assert stored.id == second.id


async def test_of_twenty_concurrent_callers_one_makes_the_document(ledger: Ledger) -> None:
    answers = await asyncio.gather(
        *(
            PipelineLedger(ledger).documents.upsert_document("hash-1", source=f"s-{n}")
            for n in range(20)
        )
    )
    assert sum(created for _, created in answers) == 1
    assert len({document.id for document, _ in answers}) == 1


async def test_stages_are_completed_once_and_in_order(ledger: Ledger) -> None:
    document, _ = await PipelineLedger(ledger).documents.upsert_document("hash-1")
    for stage in ("extract", "classify", "extract"):
        await PipelineLedger(ledger).documents.set_stage(
            document.id, stage, "processing", completed=True
        )
    await PipelineLedger(ledger).documents.set_stage(document.id, "store", "storing")
    stored = await PipelineLedger(ledger).documents.get_document(document.id)
    assert stored is not None
    assert stored.completed_stages == ("extract", "classify")
    assert (stored.current_stage, stored.state) == ("store", "storing")


async def test_an_unknown_document_is_none(ledger: Ledger) -> None:
    assert await PipelineLedger(ledger).documents.get_document("nobody") is None
    assert await PipelineLedger(ledger).documents.set_stage("nobody", "extract", "failed") is None


async def test_a_renewed_document_begins_again_under_its_id_and_source(ledger: Ledger) -> None:
    first, _ = await PipelineLedger(ledger).documents.upsert_document(
        "hash-1", source="s-1", filename="v1", pipeline="p-1"
    )
    await PipelineLedger(ledger).documents.set_stage(
        first.id, "extract", "completed", completed=True
    )
    fields: dict[str, Any] = {
        "title": "T",
        "media_type": "text/plain",
        "size_bytes": 7,
        "pipeline": "p-2",
    }
    renewed = await PipelineLedger(ledger).documents.renew_document(
        first, "hash-2", filename="v2", **fields
    )
    assert renewed is not None
    assert (renewed.id, renewed.source, renewed.created_at) == (first.id, "s-1", first.created_at)
    assert (renewed.content_hash, renewed.filename, renewed.pipeline) == ("hash-2", "v2", "p-2")
    assert (renewed.state, renewed.current_stage, renewed.completed_stages) == ("queued", None, ())
    assert await PipelineLedger(ledger).documents.get_document(first.id) == renewed
    unknown = replace(renewed, id="nobody")
    assert (
        await PipelineLedger(ledger).documents.renew_document(
            unknown, "hash-3", filename="v2", **fields
        )
        is None
    )


@pytest.mark.parametrize("first_pipeline", ["p-1", None])
async def test_of_concurrent_renewals_of_a_document_one_counts(
    ledger: Ledger, first_pipeline: str | None
) -> None:
    first, _ = await PipelineLedger(ledger).documents.upsert_document(
        "hash-1", pipeline=first_pipeline
    )
    fields: dict[str, Any] = {"title": None, "media_type": None, "size_bytes": None}
    renewed = await asyncio.gather(
        *(
            PipelineLedger(ledger).documents.renew_document(
                first, f"hash-{n}", filename="v", pipeline=f"p-{n}", **fields
            )
            for n in range(2, 7)
        )
    )
    assert [document for document in renewed if document] == [
        await PipelineLedger(ledger).documents.get_document(first.id)
    ]


async def test_of_concurrent_takeovers_of_a_source_one_counts(ledger: Ledger) -> None:
    first, _ = await PipelineLedger(ledger).documents.upsert_document(
        "hash-1", source="s", pipeline="p-1"
    )
    answers = await asyncio.gather(
        *(
            PipelineLedger(ledger).documents.upsert_document(
                f"hash-{n}", source="s", pipeline=f"p-{n}", instead_of=first
            )
            for n in range(2, 7)
        )
    )
    (winner,) = {document.id for document, _ in answers}
    assert sorted(created for _, created in answers) == [False] * 4 + [True]
    assert winner != first.id
    remaining = await PipelineLedger(ledger).documents.get_document(first.id)
    assert remaining is not None
    assert remaining == replace(first, source=None, updated_at=remaining.updated_at)
    source_document = await PipelineLedger(ledger).documents.find_document("nothing has this", "s")
    assert source_document is not None
    assert source_document.id == winner


async def test_a_document_that_another_run_has_taken_up_keeps_its_source(ledger: Ledger) -> None:
    first, _ = await PipelineLedger(ledger).documents.upsert_document(
        "hash-1", source="s", pipeline="p-1"
    )
    fields: dict[str, Any] = {"title": None, "media_type": None, "size_bytes": None}
    await PipelineLedger(ledger).documents.renew_document(
        first, "hash-1", filename="v", pipeline="p-2", **fields
    )
    stored, created = await PipelineLedger(ledger).documents.upsert_document(
        "hash-2", source="s", instead_of=first
    )
    assert (stored.id, stored.source, created) == (first.id, "s", False)


async def test_a_renewed_document_does_not_take_the_content_of_another(ledger: Ledger) -> None:
    first, _ = await PipelineLedger(ledger).documents.upsert_document("hash-1")
    other, _ = await PipelineLedger(ledger).documents.upsert_document("hash-2")
    renewed = await PipelineLedger(ledger).documents.renew_document(
        first,
        "hash-2",
        filename="v2",
        title=None,
        media_type=None,
        size_bytes=None,
        pipeline=None,
    )
    assert renewed is not None
    assert (renewed.content_hash, renewed.filename) == ("hash-1", "v2")
    stored, _ = await PipelineLedger(ledger).documents.upsert_document("hash-2")
    assert stored == other
