"""Run documents through the pipeline, and read their results."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from switchyard.services.common.files.storage_keys import result_key
from switchyard.services.pipeline.index.chunk_search import Hit, search
from switchyard.services.pipeline.index.open_index import open_index
from switchyard.services.pipeline.ledger import PipelineLedger
from tests.integration.pipeline.conftest import Pipeline
from tests.support import llm_server
from tests.support.eventually import eventually
from tests.support.llm_server import FakeLlmServer
from tests.support.site import Behaviour, held

STAGES = [
    "ingest_document",
    "extract_text",
    "summarize_content",
    "embed_content",
    "classify_document",
    "link_content",
]


def written(tmp_path: Path, name: str, content: bytes) -> dict[str, str]:
    path = tmp_path / name
    path.write_bytes(content)
    return {"path": str(path)}


async def ingested(pipeline: Pipeline, payload: dict[str, Any]) -> str:
    await pipeline.run("ingest_document", payload)
    return str(pipeline.result("ingest_document")["document_id"])


async def document(pipeline: Pipeline, document_id: str):
    assert pipeline.ledger is not None
    stored = await PipelineLedger(pipeline.ledger).documents.get_document(document_id)
    assert stored is not None
    return stored


def whole_result(pipeline: Pipeline, document_id: str) -> dict[str, Any]:
    return dict(json.loads(pipeline.storage.get(result_key(document_id))))


async def find(pipeline: Pipeline, query: str, limit: int = 10, **options: Any) -> list[Hit]:
    async with open_index(pipeline.settings) as store, store.open_active() as (index, embedder):
        return await search(index, embedder, query, limit, **options)


async def chunk_count(pipeline: Pipeline, document_id: str) -> int:
    async with open_index(pipeline.settings) as store, store.open_active() as (index, _):
        return await index.count(document_id)


async def failing_beside_another(
    llm: FakeLlmServer, answer: Behaviour, job: Coroutine[Any, Any, Any]
) -> None:
    """Run a job whose first request fails while a second one is under way, which is answered
    afterwards. Raises what the job raises."""
    goes_on = threading.Event()
    llm.always(held(goes_on, answer))
    llm.next(llm_server.fails(502))
    running = asyncio.create_task(job)
    try:
        await eventually(lambda: len(llm.requests) > 1)
    finally:
        goes_on.set()
    await running
