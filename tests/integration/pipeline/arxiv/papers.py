"""One paper, its jobs, and the vectors of its document."""

from __future__ import annotations

from switchyard.services.pipeline.index.open_index import open_index
from tests.integration.pipeline.conftest import Pipeline
from tests.integration.pipeline.documents import get_only_document

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


async def read_vectors(arxiv_pipeline: Pipeline) -> list[list[float]]:
    """Return the vectors of the only document."""
    async with open_index(arxiv_pipeline.settings) as store, store.open_active() as (index, _):
        document_id = (await get_only_document(arxiv_pipeline)).id
        return await index.vectors_at(document_id, range(100))
