"""Every kind of sample goes through the pipeline, or is refused with the right reason."""

from __future__ import annotations

from pathlib import Path

import pymupdf
import pytest

from switchyard.services.common.errors import PermanentError
from switchyard.services.common.files.errors import (
    CorruptDocument,
    EncryptedDocument,
    UnsupportedDocument,
)
from switchyard.services.engine.jobs.outcomes import Next
from switchyard.services.pipeline.samples.generated_samples import generate, kinds
from tests.integration.pipeline.conftest import Pipeline
from tests.integration.pipeline.documents import find_hits, get_document

KINDS_WITH_TEXT = [kind for kind in kinds() if kind not in ("scan", "image")]


async def generate_documents(pipeline: Pipeline, **payload: object) -> list[dict[str, str]]:
    await pipeline.run("generate_documents", payload)
    documents: list[dict[str, str]] = pipeline.result("generate_documents")["documents"]
    return documents


async def test_every_kind_of_sample_goes_through_and_is_found(pipeline: Pipeline):
    samples = await generate_documents(
        pipeline, count=len(KINDS_WITH_TEXT), seed=3, kinds=KINDS_WITH_TEXT
    )
    for sample in samples:
        stored = await get_document(pipeline, sample["document_id"])
        assert (stored.state, stored.filename) == ("completed", sample["filename"])
    assert len({sample["language"] for sample in samples}) > 4
    hits = await find_hits(pipeline, samples[0]["title"])
    assert samples[0]["document_id"] in {hit.document_id for hit in hits}


async def test_the_same_samples_again_are_duplicates(pipeline: Pipeline):
    payload = {"count": 2, "seed": 9, "kinds": ["letter", "invoice"]}
    first = await generate_documents(pipeline, **payload)
    assert await generate_documents(pipeline, **payload) == first
    assert [name for name, _ in pipeline.outcomes] == ["generate_documents"] + 2 * [
        "ingest_document"
    ]
    assert pipeline.result("ingest_document")["duplicate"] is True


async def test_each_generated_document_has_a_file_and_a_run_of_its_own(pipeline: Pipeline):
    outcome = await pipeline.run_job("generate_documents", {"count": 2, "kinds": ["letter"]})
    assert isinstance(outcome, Next)
    assert all(job.own_pipeline for job in outcome.jobs)
    assert len({job.payload["key"] for job in outcome.jobs}) == 2


@pytest.mark.parametrize("kind", ["scan", "image"])
async def test_samples_without_text_go_to_ocr(pipeline: Pipeline, tmp_path: Path, kind: str):
    sample = next(generate(1, seed=2, kinds=[kind], languages=["en"]))
    path = tmp_path / sample.filename
    path.write_bytes(sample.content)
    await pipeline.run_job("ingest_document", {"path": str(path)})
    outcome = await pipeline.run_job(
        "extract_text", {"document_id": _document_id_of(sample.content)}
    )
    assert isinstance(outcome, Next)
    assert [job.job_type for job in outcome.jobs] == ["await_ocr"]


def _document_id_of(content: bytes) -> str:
    from switchyard.services.common.files.storage_keys import content_hash
    from switchyard.services.pipeline.workers.stages import document_id_of

    return document_id_of(content_hash(content))


async def test_damaged_samples_are_refused_with_the_right_reason(
    pipeline: Pipeline, tmp_path: Path
):
    sample = next(generate(1, seed=2, kinds=["report"], languages=["de"]))
    with pymupdf.open(stream=sample.content, filetype="pdf") as document:
        encrypted = document.tobytes(encryption=pymupdf.mupdf.PDF_ENCRYPT_AES_256, user_pw="secret")
    for name, content, error in (
        ("cut.pdf", sample.content[: len(sample.content) * 2 // 3], CorruptDocument),
        ("locked.pdf", bytes(encrypted), EncryptedDocument),
        ("none.pdf", b"<html>not found</html>", UnsupportedDocument),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(error):
            await pipeline.run("ingest_document", {"path": str(path)})


async def test_unknown_kinds_are_refused_for_good(pipeline: Pipeline):
    with pytest.raises(PermanentError, match="no kind 'poem'"):
        await pipeline.run_job("generate_documents", {"kinds": ["poem"]})
