"""The index holds each chunk once, however many processes write it and how often."""

from __future__ import annotations

import pytest

from switchyard.services.pipeline.index.chunk_index import IndexMismatch
from switchyard.services.pipeline.text.chunks import Chunk, chunk_id
from tests.support.chunk_tables import (
    DIMENSIONS,
    make_chunks,
    make_vector,
    open_table,
    put_chunks,
    read_texts,
)


async def test_a_repeat_overwrites_and_doubles_nothing(url: str):
    async with open_table(url) as index:
        await put_chunks(index, "a", 3, "old")
        await put_chunks(index, "a", 3, "new")
        assert await read_texts(index) == ["new 0", "new 1", "new 2"]


@pytest.mark.parametrize("count", [2, 1, 0])
async def test_a_run_with_fewer_chunks_leaves_no_orphans(url: str, count: int):
    async with open_table(url) as index:
        await put_chunks(index, "a", 5)
        await put_chunks(index, "b", 5)
        await put_chunks(index, "a", count)
        assert (await index.count("a"), await index.count("b")) == (count, 5)


async def test_an_interrupted_replacement_is_mended_by_the_next(url: str):
    async with open_table(url) as index:
        await put_chunks(index, "a", 5, "old")
        await index.put("Title", make_chunks("a", 2, "new"), [make_vector(0)] * 2)
        assert await index.count("a") == 5  # killed before the orphans were removed
        await put_chunks(index, "a", 2, "new")
        assert await read_texts(index) == ["new 0", "new 1"]


async def test_each_connection_sees_what_others_have_written(url: str):
    async with open_table(url) as index:
        await put_chunks(index, "a", 2)
    async with open_table(url) as index:
        assert await index.count() == 2
        await index.delete_document("a")
        await index.delete_document("never there")
    async with open_table(url) as index:
        assert await index.count() == 0


async def test_chunks_without_a_vector_each_are_refused(url: str):
    async with open_table(url) as index:
        with pytest.raises(ValueError, match="2 chunks and 1 vectors"):
            await index.put("", make_chunks("a", 2), [make_vector(0)])


async def test_compactions_change_no_chunk(url: str):
    async with open_table(url) as index:
        for document_id in "abcdef":
            await put_chunks(index, document_id, 3)
        before = await read_texts(index)
        await index.compact()
        await index.compact()
        assert await read_texts(index) == before
        await put_chunks(index, "a", 1)
        assert await index.count() == 16


async def test_chunks_with_characters_that_a_database_refuses_are_stored(url: str):
    odd_texts = ["zero \0 byte", "half \ud800 pair", "long " + "x" * 5_000]
    if "postgresql" not in url:
        odd_texts.pop(1)  # Arrow can't store it, and no text of a document has one
    async with open_table(url) as index:
        document_chunks = [
            Chunk(chunk_id("a", n), "a", n, 1, text) for n, text in enumerate(odd_texts)
        ]
        await index.put("T", document_chunks, [make_vector(0)] * len(document_chunks))
        assert [match.chunk.index for match in await index.keyword_search("zero", 3)] == [0]


async def test_a_documents_texts_come_in_order_and_documents_by_name(url: str):
    async with open_table(url) as index:
        assert await index.document_ids() == []
        await put_chunks(index, "b", 12)
        await put_chunks(index, "A", 1)
        assert await index.document_ids() == ["A", "b"]
        stored_texts = await index.texts_of("b", 5, 4)
        assert [each.chunk for each in stored_texts] == make_chunks("b", 12)[5:9]
        assert {each.title for each in stored_texts} == {"Title"}
        assert await index.texts_of("nobody", 0, 4) == []


@pytest.mark.parametrize(("embedder", "dimensions"), [("other", DIMENSIONS), ("test", 16)])
async def test_another_embedders_index_is_refused(url: str, embedder: str, dimensions: int):
    async with open_table(url) as index:
        await put_chunks(index, "a", 1)
    with pytest.raises(IndexMismatch, match="'test', length 8"):
        async with open_table(url, embedder, dimensions):
            pass


@pytest.mark.parametrize(
    ("embedder", "remedy"),
    [
        ("hashed-2-8", "JOBS_EMBED_OFFLINE=hashed and JOBS_EMBED_DIMENSIONS=8"),
        ("wordllama-1-8", "JOBS_EMBED_OFFLINE=wordllama and JOBS_EMBED_DIMENSIONS=8"),
        ("some-model-8", "JOBS_EMBED_BASE_URL, JOBS_EMBED_MODEL and JOBS_EMBED_DIMENSIONS back"),
    ],
)
async def test_a_refusal_says_how_to_use_the_index_as_it_is(url: str, embedder: str, remedy: str):
    async with open_table(url, embedder):
        pass
    with pytest.raises(IndexMismatch, match=remedy):
        async with open_table(url, "other"):
            pass
