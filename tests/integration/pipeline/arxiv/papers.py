"""One paper, its jobs, and helpers that read the stored document."""

from __future__ import annotations

import json
from typing import Any

from switchyard.services.common.files.storage_keys import result_key
from switchyard.services.pipeline.index.open_index import open_index
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.records.documents import Document
from tests.integration.pipeline.conftest import Pipeline

JOB = "ingest_arxiv"
STAGES = [
    JOB,
    "extract_text",
    "summarize_content",
    "embed_content",
    "classify_document",
    "link_content",
]
ID = "1605.08386"


async def the_document(arxiv: Pipeline) -> Document:
    """Return the only document."""
    assert arxiv.ledger is not None
    [only_document] = (await PipelineLedger(arxiv.ledger).documents.list_documents()).items
    return only_document


async def whole_result(arxiv: Pipeline) -> dict[str, Any]:
    document = await the_document(arxiv)
    return dict(json.loads(arxiv.storage.get(result_key(document.id))))


async def indexed(arxiv: Pipeline) -> list[list[float]]:
    """Return the vectors of the only document."""
    async with open_index(arxiv.settings) as store, store.open_active() as (index, _):
        document_id = (await the_document(arxiv)).id
        return await index.vectors_at(document_id, range(100))
