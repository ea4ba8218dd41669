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
from switchyard.services.pipeline.records.documents import Document
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


def write_input(tmp_path: Path, name: str, content: bytes) -> dict[str, str]:
    """Write a file, and return the payload of a job that ingests it."""
    path = tmp_path / name
    path.write_bytes(content)
    return {"path": str(path)}


async def ingest(pipeline: Pipeline, payload: dict[str, Any]) -> str:
    """Run a file through the pipeline, and return the document's id."""
    await pipeline.run("ingest_document", payload)
    return str(pipeline.result("ingest_document")["document_id"])


async def ingest_file(pipeline: Pipeline, folder: Path, name: str, content: bytes) -> str:
    return await ingest(pipeline, write_input(folder, name, content))


async def get_document(pipeline: Pipeline, document_id: str):
    assert pipeline.ledger is not None
    stored = await PipelineLedger(pipeline.ledger).documents.get_document(document_id)
    assert stored is not None
    return stored


async def get_only_document(pipeline: Pipeline) -> Document:
    assert pipeline.ledger is not None
    [document] = (await PipelineLedger(pipeline.ledger).documents.list_documents()).items
    return document


async def read_only_result(pipeline: Pipeline) -> dict[str, Any]:
    """Return the result of the only document."""
    return read_result(pipeline, (await get_only_document(pipeline)).id)


def read_result(pipeline: Pipeline, document_id: str) -> dict[str, Any]:
    return dict(json.loads(pipeline.storage.get(result_key(document_id))))


async def find_hits(pipeline: Pipeline, query: str, limit: int = 10, **options: Any) -> list[Hit]:
    async with open_index(pipeline.settings) as store, store.open_active() as (index, embedder):
        return await search(index, embedder, query, limit, **options)


async def count_chunks(pipeline: Pipeline, document_id: str) -> int:
    async with open_index(pipeline.settings) as store, store.open_active() as (index, _):
        return await index.count(document_id)


async def run_failing_beside_another(
    llm: FakeLlmServer, answer: Behaviour, job: Coroutine[Any, Any, Any]
) -> None:
    """Run a job whose first request fails while a second one is under way, which is answered
    afterwards. Raises what the job raises."""
    release = threading.Event()
    llm.always(held(release, answer))
    llm.next(llm_server.fails(502))
    task = asyncio.create_task(job)
    try:
        await eventually(lambda: len(llm.requests) > 1)
    finally:
        release.set()
    await task
