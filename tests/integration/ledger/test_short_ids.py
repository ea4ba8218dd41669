"""The first characters of an id stand for it, if no other id begins with them."""

import pytest

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.short_ids import AmbiguousId, IdTable
from switchyard.services.pipeline.ledger import PipelineLedger
from tests.support.made import claim, letter, message, new_job

FIRST_ID = "4eed1ee8-7a10-4d1c-9d5b-aaaaaaaaaaaa"
SIMILAR_ID = "4eed1ee8-9910-4d1c-9d5b-ffffffffffff"
DIFFERENT_ID = "c0ffee00-0000-4000-8000-000000000000"


async def test_an_id_is_found_by_six_digits_or_more(ledger: Ledger) -> None:
    for job_id in (FIRST_ID, SIMILAR_ID, DIFFERENT_ID):
        await ledger.jobs.record(new_job(message(job_id)))
    for id_or_start in (
        DIFFERENT_ID,
        DIFFERENT_ID[:-1],
        DIFFERENT_ID[:8],
        DIFFERENT_ID[:9],
        DIFFERENT_ID[:6],
    ):
        assert await ledger.short_ids.full_id(IdTable.JOBS, id_or_start) == DIFFERENT_ID
    assert await ledger.short_ids.full_id(IdTable.JOBS, "4eed1ee8-9") == SIMILAR_ID
    for unresolved in (DIFFERENT_ID[:5], "4eed1ee9", "C0FFEE00", "c0ffee%", ""):
        resolved = await ledger.short_ids.full_id(IdTable.JOBS, unresolved)
        assert resolved == unresolved


async def test_the_error_for_an_ambiguous_start_lists_the_ids(ledger: Ledger) -> None:
    for job_id in (FIRST_ID, SIMILAR_ID):
        await ledger.jobs.record(new_job(message(job_id)))
    with pytest.raises(
        AmbiguousId, match=f"several ids begin with 4eed1ee8: {FIRST_ID}, {SIMILAR_ID}; wr"
    ):
        await ledger.short_ids.full_id(IdTable.JOBS, "4eed1ee8")


async def test_the_start_of_a_client_s_own_id_finds_nothing(ledger: Ledger) -> None:
    for job_id in ("order-12", "1000012", "abcdef", "abcdef0123456789"):
        await ledger.jobs.record(new_job(message(job_id)))
    for id_or_start in ("order-1", "100001", "abcdef"):
        assert await ledger.short_ids.full_id(IdTable.JOBS, id_or_start) == id_or_start


async def test_dead_letters_and_operations_have_short_ids_too(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim(message(FIRST_ID)))
    await ledger.dead_letters.index_dead(
        [letter(FIRST_ID), letter(None, id="raw-0123456789abcdef01234567")]
    )
    for operation in ("redrive-0f00000001", "backfill-0f00000001"):
        await ledger.bulk.create_bulk(
            operation, kind="backfill", title="t", spec={}, created_by="ann"
        )
    assert await ledger.short_ids.full_id(IdTable.DEAD_LETTERS, "4eed1ee8") == FIRST_ID
    raw = await ledger.short_ids.full_id(IdTable.DEAD_LETTERS, "raw-012345")
    assert raw == "raw-0123456789abcdef01234567"
    assert (
        await ledger.short_ids.full_id(IdTable.OPERATIONS, "backfill-0f0000")
        == "backfill-0f00000001"
    )


async def test_documents_and_crawls_have_short_ids_too(ledger: Ledger) -> None:
    pipeline = PipelineLedger(ledger)
    await pipeline.documents.upsert_document("1", document_id=FIRST_ID)
    assert await pipeline.documents.full_id("4eed1ee8") == FIRST_ID
    assert await pipeline.documents.full_id("4eed1ee9") == "4eed1ee9"
    await pipeline.documents.upsert_document("2", document_id=SIMILAR_ID)
    with pytest.raises(AmbiguousId):
        await pipeline.documents.full_id("4eed1ee8")
    assert await pipeline.crawls.full_id("4eed1ee8") == "4eed1ee8"
