"""The beginning of an id stands for the one id that begins so."""

import pytest

from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.short_ids import AmbiguousId, IdTable
from switchyard.services.pipeline.ledger import PipelineLedger
from tests.support.made import claim, letter, message, new_job

ONE = "4eed1ee8-7a10-4d1c-9d5b-aaaaaaaaaaaa"
OTHER = "4eed1ee8-9910-4d1c-9d5b-ffffffffffff"
FAR = "c0ffee00-0000-4000-8000-000000000000"


async def test_an_id_is_found_by_six_digits_or_more(ledger: Ledger) -> None:
    for job_id in (ONE, OTHER, FAR):
        await ledger.jobs.record(new_job(message(job_id)))
    for id_or_start in (FAR, FAR[:-1], FAR[:8], FAR[:9], FAR[:6]):
        assert await ledger.short_ids.full_id(IdTable.JOBS, id_or_start) == FAR
    assert await ledger.short_ids.full_id(IdTable.JOBS, "4eed1ee8-9") == OTHER
    for too_short_or_of_nothing in (FAR[:5], "4eed1ee9", "C0FFEE00", "c0ffee%", ""):
        same = await ledger.short_ids.full_id(IdTable.JOBS, too_short_or_of_nothing)
        assert same == too_short_or_of_nothing


async def test_the_error_for_an_ambiguous_start_lists_the_ids(ledger: Ledger) -> None:
    for job_id in (ONE, OTHER):
        await ledger.jobs.record(new_job(message(job_id)))
    with pytest.raises(AmbiguousId, match=f"several ids begin with 4eed1ee8: {ONE}, {OTHER}; wr"):
        await ledger.short_ids.full_id(IdTable.JOBS, "4eed1ee8")


async def test_the_start_of_a_client_s_own_id_finds_nothing(ledger: Ledger) -> None:
    for job_id in ("order-12", "1000012", "abcdef", "abcdef0123456789"):
        await ledger.jobs.record(new_job(message(job_id)))
    for id_or_start in ("order-1", "100001", "abcdef"):
        assert await ledger.short_ids.full_id(IdTable.JOBS, id_or_start) == id_or_start


async def test_dead_letters_and_operations_have_short_ids_too(ledger: Ledger) -> None:
    await ledger.jobs.claim(claim(message(ONE)))
    await ledger.dead_letters.index_dead(
        [letter(ONE), letter(None, id="raw-0123456789abcdef01234567")]
    )
    for operation in ("redrive-0f00000001", "backfill-0f00000001"):
        await ledger.bulk.create_bulk(
            operation, kind="backfill", title="t", spec={}, created_by="ann"
        )
    assert await ledger.short_ids.full_id(IdTable.DEAD_LETTERS, "4eed1ee8") == ONE
    raw = await ledger.short_ids.full_id(IdTable.DEAD_LETTERS, "raw-012345")
    assert raw == "raw-0123456789abcdef01234567"
    assert (
        await ledger.short_ids.full_id(IdTable.OPERATIONS, "backfill-0f0000")
        == "backfill-0f00000001"
    )


async def test_documents_and_crawls_have_short_ids_too(ledger: Ledger) -> None:
    pipeline = PipelineLedger(ledger)
    await pipeline.documents.upsert_document("1", document_id=ONE)
    assert await pipeline.documents.full_id("4eed1ee8") == ONE
    assert await pipeline.documents.full_id("4eed1ee9") == "4eed1ee9"
    await pipeline.documents.upsert_document("2", document_id=OTHER)
    with pytest.raises(AmbiguousId):
        await pipeline.documents.full_id("4eed1ee8")
    assert await pipeline.crawls.full_id("4eed1ee8") == "4eed1ee8"
