"""A backup that is made while the index is written has an index that opens and is searched."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from switchyard.services.common.settings import Settings
from switchyard.services.engine.backup.creating import create_backup
from switchyard.services.engine.backup.restoring import restore_backup, verify_backup
from switchyard.services.pipeline.index.chunk_index import ChunkIndex
from switchyard.services.pipeline.index.embedder import Embedder
from switchyard.services.pipeline.index.index_rebuild import compact_index
from switchyard.services.pipeline.index.open_index import open_index
from switchyard.services.pipeline.text.chunks import Chunk, chunk_id
from tests.support.ledgers import make_ledger

CHUNKS = 3
DOCUMENTS = 5
BACKUPS = 2


async def test_a_backup_beside_writers_has_an_index_that_is_searched(tmp_path: Path) -> None:
    settings = make_settings(tmp_path / "system")
    await make_ledger(settings.ledger_url)
    has_documents = asyncio.Event()
    writer = asyncio.create_task(write_repeatedly(settings, has_documents))
    try:
        await has_documents.wait()
        for number in range(BACKUPS):
            backup = await create_backup(settings, tmp_path, "{}")
            verify_backup(backup.archive)
            restored_settings = make_settings(tmp_path / f"other-{number}")
            restore_backup(restored_settings, backup.archive, replace=False)
            backup.archive.unlink()
            assert await count_searchable_documents(restored_settings) == DOCUMENTS
        assert not writer.done()
    finally:
        writer.cancel()
        with suppress(asyncio.CancelledError):
            await writer


def make_settings(folder: Path) -> Settings:
    return Settings(data_dir=folder, embed_offline="hashed")


async def write_repeatedly(settings: Settings, has_documents: asyncio.Event) -> None:
    """Write the documents again and again, and compact after every tenth, until cancelled."""
    number = 0
    async with open_index(settings) as index:
        while True:
            document = f"document-{number % DOCUMENTS}"
            texts = [f"tide {number} piece {each}" for each in range(CHUNKS)]
            chunks = [
                Chunk(chunk_id(document, each), document, each, 1, text)
                for each, text in enumerate(texts)
            ]

            async def put(
                table: ChunkIndex,
                embedder: Embedder,
                chunks: list[Chunk] = chunks,
                texts: list[str] = texts,
            ) -> None:
                await table.put("Title", chunks, await embedder.embed(texts))

            await index.write(put)
            number += 1
            if number == DOCUMENTS:
                has_documents.set()
            if number % 10 == 0:
                await compact_index(index)


async def count_searchable_documents(settings: Settings) -> int:
    """Read all chunks, search, and return the number of documents."""
    async with open_index(settings) as index, index.open_active() as (table, embedder):
        documents = await table.document_ids()
        for document in documents:
            assert len(await table.texts_of(document, 0, 10)) == CHUNKS
            assert len(await table.vectors_at(document, range(CHUNKS))) == CHUNKS
        (vector,) = await embedder.embed(["tide"])
        assert len(await table.nearest(vector, CHUNKS)) == CHUNKS
        assert len(await table.keyword_search("tide", CHUNKS)) == CHUNKS
        return len(documents)
