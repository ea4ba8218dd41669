"""What a document cites is found in its text, cut into fields, and tied to where it is cited."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from switchyard.services.files.storage import references_key, stage_key
from switchyard.services.jobs.outcomes import Done
from switchyard.services.workers import references as references_worker
from switchyard.services.workers.outputs import MissingOutput
from switchyard.services.workers.stages import EXTRACT, PROCESS_REFERENCES
from tests.integration.pipeline.conftest import Pipeline
from tests.integration.pipeline.pdfs import pdf

BODY = "The tide rises twice a day [1]. Others disagree with this [1, 2]."
LISTED = """References
[1] R. Roe and J. Doe. On tides and their causes. Journal of Physics, 12(3):33-40, 1999.
[2] A. Smith. The sea. Oxford University Press, Oxford, 2004."""


async def cited(pipeline: Pipeline, tmp_path: Path) -> str:
    path = tmp_path / "paper.pdf"
    path.write_bytes(pdf([BODY, LISTED], title="On Tides"))
    await pipeline.run("ingest_document", {"path": str(path)})
    return str(pipeline.result("ingest_document")["document_id"])


def kept(pipeline: Pipeline, document_id: str) -> dict[str, Any]:
    return dict(json.loads(pipeline.storage.get(references_key(document_id))))


async def test_a_document_s_references_and_where_they_are_cited(pipeline: Pipeline, tmp_path: Path):
    document_id = await cited(pipeline, tmp_path)
    await pipeline.run("process_references", {"document_id": document_id})
    made = kept(pipeline, document_id)
    first, second = made["references"]
    assert (first["label"], first["page"], first["year"]) == ("1", 2, 1999)
    assert first["title"] == "On tides and their causes"
    assert [person["family"] for person in first["authors"]] == ["Roe", "Doe"]
    assert second["title"] == "The sea"
    assert [(one["marker"], one["references"]) for one in made["citations"]] == [
        ("[1]", [0]),
        ("[1, 2]", [0, 1]),
    ]
    assert made["citations"][0]["sentence"] == "The tide rises twice a day [1]."
    assert pipeline.result("process_references")["references"] == 2


async def test_a_repeat_finds_what_was_kept_and_writes_what_was_lost(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    document_id = await cited(pipeline, tmp_path)
    await pipeline.run("process_references", {"document_id": document_id})
    before = kept(pipeline, document_id)
    pipeline.storage.put(references_key(document_id), b"{}")
    monkeypatch.setattr(references_worker, "_processed", None)  # would fail if it were called
    await pipeline.run("process_references", {"document_id": document_id})
    assert pipeline.result("process_references")["reused"]
    assert kept(pipeline, document_id) == before


async def test_without_the_document_s_text_it_says_what_to_do(pipeline: Pipeline, tmp_path: Path):
    document_id = await cited(pipeline, tmp_path)
    await pipeline.storage.delete_async(stage_key(document_id, EXTRACT.name))
    with pytest.raises(MissingOutput, match="ingest the document again"):
        await pipeline.run("process_references", {"document_id": document_id})
    assert PROCESS_REFERENCES.name == "process_references"


async def test_references_that_come_as_text_are_the_job_s_result(pipeline: Pipeline):
    texts = ["Kuhn, T. S. (1962). The structure of scientific revolutions. Chicago.", "\x00"]
    await pipeline.run("parse_references", {"references": texts})
    (first, second) = pipeline.result("parse_references")["references"]
    assert (first["title"], first["year"]) == ("The structure of scientific revolutions", 1962)
    assert second == {"text": "", "engine": "offline"}
    assert isinstance(pipeline.ran[-1][1], Done)
