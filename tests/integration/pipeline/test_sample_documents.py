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
from tests.integration.pipeline.documents import document, find

TO_READ = [kind for kind in kinds() if kind not in ("scan", "image")]


async def generated(pipeline: Pipeline, **order: object) -> list[dict[str, str]]:
    await pipeline.run("generate_documents", order)
    documents: list[dict[str, str]] = pipeline.result("generate_documents")["documents"]
    return documents


async def test_every_kind_of_sample_goes_through_and_is_found(pipeline: Pipeline):
    samples = await generated(pipeline, count=len(TO_READ), seed=3, kinds=TO_READ)
    for sample in samples:
        stored = await document(pipeline, sample["document_id"])
        assert (stored.state, stored.filename) == ("completed", sample["filename"])
    assert len({sample["language"] for sample in samples}) > 4
    hits = await find(pipeline, samples[0]["title"])
    assert samples[0]["document_id"] in {hit.document_id for hit in hits}


async def test_the_same_samples_again_are_known(pipeline: Pipeline):
    order = {"count": 2, "seed": 9, "kinds": ["letter", "invoice"]}
    first = await generated(pipeline, **order)
    assert await generated(pipeline, **order) == first
    assert [name for name, _ in pipeline.ran] == ["generate_documents"] + 2 * ["ingest_document"]
    assert pipeline.result("ingest_document")["duplicate"] is True


async def test_a_repeat_of_the_job_leaves_nothing_behind(pipeline: Pipeline):
    outcome = await pipeline.one("generate_documents", {"count": 2, "kinds": ["letter"]})
    assert isinstance(outcome, Next)
    assert all(job.own_pipeline for job in outcome.jobs)
    assert len({job.payload["key"] for job in outcome.jobs}) == 2


@pytest.mark.parametrize("kind", ["scan", "image"])
async def test_samples_without_text_go_to_ocr(pipeline: Pipeline, tmp_path: Path, kind: str):
    sample = next(generate(1, seed=2, kinds=[kind], languages=["en"]))
    path = tmp_path / sample.filename
    path.write_bytes(sample.content)
    await pipeline.one("ingest_document", {"path": str(path)})
    outcome = await pipeline.one("extract_text", {"document_id": _id_of(sample.content)})
    assert isinstance(outcome, Next)
    assert [job.job_type for job in outcome.jobs] == ["await_ocr"]


def _id_of(content: bytes) -> str:
    from switchyard.services.common.files.storage_keys import content_hash
    from switchyard.services.pipeline.workers.stages import document_id_of

    return document_id_of(content_hash(content))


async def test_damaged_samples_are_refused_with_the_right_reason(
    pipeline: Pipeline, tmp_path: Path
):
    sample = next(generate(1, seed=2, kinds=["report"], languages=["de"]))
    with pymupdf.open(stream=sample.content, filetype="pdf") as opened:
        locked = opened.tobytes(encryption=pymupdf.mupdf.PDF_ENCRYPT_AES_256, user_pw="secret")
    for name, content, error in (
        ("cut.pdf", sample.content[: len(sample.content) * 2 // 3], CorruptDocument),
        ("locked.pdf", bytes(locked), EncryptedDocument),
        ("none.pdf", b"<html>not found</html>", UnsupportedDocument),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(error):
            await pipeline.run("ingest_document", {"path": str(path)})


async def test_unknown_kinds_are_refused_for_good(pipeline: Pipeline):
    with pytest.raises(PermanentError, match="no kind 'poem'"):
        await pipeline.one("generate_documents", {"kinds": ["poem"]})
