"""Documents are classified in the pipeline, listed and searched by class, and classified again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from switchyard.services.common.files.storage_keys import result_key
from switchyard.services.engine.jobs.outcomes import Next
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.requests import DocumentFilter
from switchyard.services.pipeline.classes.class_definitions import BadClasses
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.records.documents import DocumentClass
from tests.integration.pipeline.conftest import Pipeline
from tests.integration.pipeline.documents import ingest_file

SECRET = (
    "Strictly confidential. This letter names the patient's date of birth and IBAN. Electricity "
    "from the wind farm reached the grid, and the power plant sold its energy."
)
MOOD_CLASSES = """
[kinds.mood]
by = "rules"
otherwise = "calm"
[kinds.mood.labels.stormy]
at_least = 1
keywords = { "wind*" = 1 }
"""


async def ingest_text(pipeline: Pipeline, folder: Path, text: str, name: str = "a.txt") -> str:
    return await ingest_file(pipeline, folder, name, text.encode())


def class_names(classes: tuple[DocumentClass, ...]) -> list[str]:
    return [each.name for each in classes]


async def test_a_document_is_classified_by_its_words_and_by_meaning(
    pipeline: Pipeline, ledger: Ledger, tmp_path: Path
):
    document_id = await ingest_text(pipeline, tmp_path, SECRET)
    classes = (await PipelineLedger(ledger).document_classes.classes_of([document_id]))[document_id]
    assert "privacy:restricted" in class_names(classes)
    assert "industry:energy" in class_names(classes)
    privacy = next(each for each in classes if each.kind == "privacy")
    assert privacy.why["keywords"] == {"strictly confidential": 1}
    assert privacy.score == 6
    result = json.loads(pipeline.storage.get(result_key(document_id)))
    assert {f"{each['kind']}:{each['label']}" for each in result["classes"]} == set(
        class_names(classes)
    )


async def test_documents_are_found_by_class(pipeline: Pipeline, ledger: Ledger, tmp_path: Path):
    restricted_id = await ingest_text(pipeline, tmp_path, SECRET)
    public_id = await ingest_text(
        pipeline, tmp_path, "The piano was played in the evening.", "b.txt"
    )
    assert await PipelineLedger(ledger).documents.document_ids(
        DocumentFilter(classes=("privacy:public",))
    ) == {public_id}
    privacy_classes = ["privacy:public", "privacy:restricted"]
    assert await PipelineLedger(ledger).documents.document_ids(
        DocumentFilter(classes=tuple(privacy_classes))
    ) == {public_id, restricted_id}
    assert await PipelineLedger(ledger).documents.document_ids(
        DocumentFilter(
            classes=(
                *privacy_classes,
                "industry:energy",
            )
        )
    ) == {restricted_id}
    page = await PipelineLedger(ledger).documents.list_documents(classes=["privacy:restricted"])
    assert [each.id for each in page.items] == [restricted_id]


async def test_a_repeat_reuses_the_classes_and_another_file_classifies_again(
    pipeline: Pipeline, ledger: Ledger, tmp_path: Path
):
    document_id = await ingest_text(pipeline, tmp_path, SECRET)
    before = await PipelineLedger(ledger).document_classes.classes_of([document_id])
    outcome = await pipeline.run_job("classify_document", {"document_id": document_id})
    assert isinstance(outcome, Next)
    assert outcome.result["reused"] is True
    assert await PipelineLedger(ledger).document_classes.classes_of([document_id]) == before
    path = tmp_path / "mine.toml"
    path.write_text(MOOD_CLASSES)
    pipeline_with_moods = replace(
        pipeline, settings=pipeline.settings.model_copy(update={"classes": path})
    )
    await pipeline_with_moods.run("classify_document", {"document_id": document_id})
    assert class_names(
        (await PipelineLedger(ledger).document_classes.classes_of([document_id]))[document_id]
    ) == ["mood:stormy"]


async def test_a_backfill_classifies_without_filling_the_hot_lane(
    pipeline: Pipeline, tmp_path: Path
):
    document_id = await ingest_text(pipeline, tmp_path, SECRET)
    outcome = await pipeline.run_job(
        "classify_document", {"document_id": document_id}, lane="backfill"
    )
    assert isinstance(outcome, Next)
    assert [(job.job_type, job.lane) for job in outcome.jobs] == [("link_content", "maintenance")]


async def test_a_bad_file_of_classes_fails_the_document_and_says_what_is_wrong(
    pipeline: Pipeline, ledger: Ledger, tmp_path: Path
):
    path = tmp_path / "mine.toml"
    path.write_text("kinds = 3")
    settings = pipeline.settings.model_copy(update={"classes": path})
    with pytest.raises(BadClasses, match="kinds: Input should be a valid dictionary"):
        await ingest_text(replace(pipeline, settings=settings), tmp_path, SECRET)
    failed = (await PipelineLedger(ledger).documents.list_documents()).items[0]
    assert (failed.state, failed.current_stage) == ("failed", "classify_document")


async def test_an_index_of_another_embedder_classifies_again(
    pipeline: Pipeline, ledger: Ledger, tmp_path: Path
):
    document_id = await ingest_text(pipeline, tmp_path, SECRET)

    async def read_impact_score() -> float:
        stored_classes = (await PipelineLedger(ledger).document_classes.classes_of([document_id]))[
            document_id
        ]
        return next(each.score for each in stored_classes if each.kind == "environmental_impact")

    before = await read_impact_score()
    await pipeline.run("rebuild_index", {"offline": "hashed"}, lane="maintenance")
    assert pipeline.result("rebuild_index")["built"] is True
    await pipeline.run("classify_document", {"document_id": document_id})
    assert pipeline.result("classify_document")["reused"] is False
    assert await read_impact_score() != before


async def test_the_classes_of_old_content_are_forgotten(
    pipeline: Pipeline, ledger: Ledger, tmp_path: Path
):
    document_id = await ingest_text(pipeline, tmp_path, SECRET)
    stored = await PipelineLedger(ledger).documents.get_document(document_id)
    assert stored is not None
    renewed = await PipelineLedger(ledger).documents.renew_document(
        stored,
        "f" * 64,
        filename=None,
        title=None,
        media_type="text/plain",
        size_bytes=1,
        pipeline="another",
    )
    assert renewed is not None
    assert await PipelineLedger(ledger).document_classes.classes_of([document_id]) == {}
