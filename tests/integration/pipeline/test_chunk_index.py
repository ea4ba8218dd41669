"""The index holds each chunk once, whoever writes it and how often."""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from pydantic import SecretStr

from switchyard.services.index import lance_table
from switchyard.services.index.checking import index as look_at_index
from switchyard.services.index.chunk_index import ChunkIndex, IndexMismatch
from switchyard.services.index.embedder import embedder_for
from switchyard.services.index.generations import Generation
from switchyard.services.index.opening import home_at, open_index
from switchyard.services.index.rebuilding import begin, build
from switchyard.services.monitoring.check import Finding
from switchyard.services.settings import Settings
from switchyard.services.text.chunks import Chunk, chunk_id

DIMENSIONS = 8
SPAWN = multiprocessing.get_context("spawn")


def chunks(document_id: str, count: int, text: str = "text") -> list[Chunk]:
    return [Chunk(chunk_id(document_id, n), document_id, n, 1, f"{text} {n}") for n in range(count)]


def vector(angle: float) -> list[float]:
    return [math.cos(angle), math.sin(angle), *[0.0] * (DIMENSIONS - 2)]


@asynccontextmanager
async def opened(
    url: str, embedder: str = "test", dimensions: int = DIMENSIONS, table: str = "chunks"
) -> AsyncIterator[ChunkIndex]:
    home = home_at(url)
    try:
        async with home.table(Generation(table, embedder, dimensions)) as index:
            yield index
    finally:
        await home.close()


async def put(index: ChunkIndex, document_id: str, count: int, text: str = "text") -> None:
    vectors = [vector(n / 10) for n in range(count)]
    await index.put("Title", chunks(document_id, count, text), vectors)
    await index.drop_from(document_id, count)


async def texts(index: ChunkIndex) -> list[str]:
    return sorted(match.chunk.text for match in await index.nearest(vector(0), 10_000))


@pytest.fixture(params=["lancedb", pytest.param("pgvector", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An address of each kind of index, with nothing there."""
    if request.param == "pgvector":
        return request.getfixturevalue("pgvector_url")
    return str(tmp_path / "index")


async def test_a_repeat_overwrites_and_doubles_nothing(url: str):
    async with opened(url) as index:
        await put(index, "a", 3, "old")
        await put(index, "a", 3, "new")
        assert await texts(index) == ["new 0", "new 1", "new 2"]


@pytest.mark.parametrize("count", [2, 1, 0])
async def test_a_run_with_fewer_chunks_leaves_no_orphans(url: str, count: int):
    async with opened(url) as index:
        await put(index, "a", 5)
        await put(index, "b", 5)
        await put(index, "a", count)
        assert (await index.count("a"), await index.count("b")) == (count, 5)


async def test_an_interrupted_replacement_is_mended_by_the_next(url: str):
    async with opened(url) as index:
        await put(index, "a", 5, "old")
        await index.put("Title", chunks("a", 2, "new"), [vector(0)] * 2)
        assert await index.count("a") == 5  # killed before the orphans were removed
        await put(index, "a", 2, "new")
        assert await texts(index) == ["new 0", "new 1"]


async def test_what_one_wrote_another_finds(url: str):
    async with opened(url) as index:
        await put(index, "a", 2)
    async with opened(url) as index:
        assert await index.count() == 2
        await index.delete_document("a")
        await index.delete_document("never there")
    async with opened(url) as index:
        assert await index.count() == 0


async def test_the_nearest_come_first_with_all_that_is_known_of_them(url: str):
    async with opened(url) as index:
        await put(index, "a", 10)
        await put(index, "b", 1)
        found = await index.nearest(vector(0.31), 3, excluding="b")
        assert [match.chunk.index for match in found] == [3, 4, 2]
        assert found[0].chunk == chunks("a", 10)[3]
        assert found[0].title == "Title"
        assert found[0].similarity == pytest.approx(math.cos(0.01))
        assert await index.nearest([0.0] * DIMENSIONS, 3) == []


async def test_texts_without_words_do_no_harm(url: str):
    async with opened(url) as index:
        await index.put("", chunks("z", 1), [[0.0] * DIMENSIONS])
        await put(index, "a", 1)
        found = await index.nearest(vector(0), 5)
        assert found[0].chunk.document_id == "a"
        assert all(math.isfinite(match.similarity) for match in found)


async def test_vectors_come_back_in_the_order_of_their_chunks(url: str):
    async with opened(url) as index:
        await put(index, "a", 12)
        await put(index, "it's", 1)
        found = await index.vectors_at("a", [11, 0, 7, 99])
        assert found == [pytest.approx(vector(n / 10), abs=1e-6) for n in (0, 7, 11)]
        assert len(await index.vectors_at("it's", [0])) == 1
        assert await index.vectors_at("nobody", [0]) == []
        assert await index.vectors_at("a", []) == []


@pytest.mark.parametrize("batch", [1, 5, 4_096])
async def test_means_are_of_all_of_a_documents_vectors_in_batches_of_any_size(
    url: str, batch: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lance_table, "BATCH", batch)
    async with opened(url) as index:
        await put(index, "a", 12)
        await put(index, "it's", 1)
        await index.put("", chunks("z", 1), [[0.0] * DIMENSIONS])
        found = await index.means_of(["a", "it's", "z", "nobody"])
        assert found["a"] == pytest.approx(vector(0.55), abs=1e-6)
        assert found["it's"] == pytest.approx(vector(0), abs=1e-6)
        assert found["z"] == [0.0] * DIMENSIONS
        assert "nobody" not in found
        assert await index.means_of([]) == {}


@pytest.mark.parametrize(("embedder", "dimensions"), [("other", DIMENSIONS), ("test", 16)])
async def test_another_embedders_index_is_refused(url: str, embedder: str, dimensions: int):
    async with opened(url) as index:
        await put(index, "a", 1)
    with pytest.raises(IndexMismatch, match="'test', length 8"):
        async with opened(url, embedder, dimensions):
            pass


@pytest.mark.parametrize(
    ("made_by", "way_back"),
    [
        ("hashed-1-8", "JOBS_EMBED_OFFLINE=hashed and JOBS_EMBED_DIMENSIONS=8"),
        ("wordllama-1-8", "JOBS_EMBED_OFFLINE=wordllama and JOBS_EMBED_DIMENSIONS=8"),
        ("some-model-8", "JOBS_EMBED_BASE_URL, JOBS_EMBED_MODEL and JOBS_EMBED_DIMENSIONS back"),
    ],
)
async def test_a_refusal_says_how_to_use_the_index_as_it_is(url: str, made_by: str, way_back: str):
    async with opened(url, made_by):
        pass
    with pytest.raises(IndexMismatch, match=way_back):
        async with opened(url, "other"):
            pass


async def test_the_nearest_are_looked_for_among_some_chunks_only(url: str):
    async with opened(url) as index:
        await put(index, "a", 5)
        some = [chunk_id("a", 4), chunk_id("a", 2)]
        found = await index.nearest(vector(0), 10, of=some)
        assert [match.chunk.index for match in found] == [2, 4]
        assert await index.nearest(vector(0), 10, of=[]) == []


async def test_as_many_vectors_as_chunks_are_wanted(url: str):
    async with opened(url) as index:
        with pytest.raises(ValueError, match="2 chunks and 1 vectors"):
            await index.put("", chunks("a", 2), [vector(0)])


async def test_maintenance_changes_nothing_that_is_seen(url: str):
    async with opened(url) as index:
        for document_id in "abcdef":
            await put(index, document_id, 3)
        before = await texts(index)
        await index.compact()
        await index.compact()
        assert await texts(index) == before
        await put(index, "a", 1)
        assert await index.count() == 16


def write(url: str, who: int, how_many: int, barrier) -> None:
    async def rounds() -> None:
        async with opened(url) as index:
            for n in range(how_many):
                barrier.wait(60)  # the same new document, at the same moment
                await put(index, f"shared-{n}", 4)
                await put(index, f"own-{who}-{n}", 3)

    asyncio.run(rounds())


def create(url: str, who: int, how_many: int, barrier) -> None:
    async def write(table: str) -> None:
        async with opened(url, table=table) as index:
            await put(index, f"doc-{who}", 2)

    import lancedb  # so that all of them are at the barrier with everything loaded  # noqa: F401

    for n in range(how_many):
        barrier.wait(60)
        asyncio.run(write(f"made_{n}"))


def run_together(target, url: str, writers: int, how_many: int) -> None:
    barrier = SPAWN.Barrier(writers)
    processes = [
        SPAWN.Process(target=target, args=(url, n, how_many, barrier)) for n in range(writers)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(90)
    assert [process.exitcode for process in processes] == [0] * writers


# Each process loads LanceDB, which takes a second or more of processor time.
TOGETHER = pytest.mark.parametrize(
    ("writers", "rounds"), [(2, 6), pytest.param(4, 12, marks=pytest.mark.long)]
)


@TOGETHER
async def test_processes_that_write_at_the_same_time_lose_and_double_nothing(
    url: str, writers: int, rounds: int
):
    await asyncio.to_thread(run_together, write, url, writers, rounds)
    async with opened(url) as index:
        assert [await index.count(f"shared-{n}") for n in range(rounds)] == [4] * rounds
        assert await index.count() == rounds * (4 + writers * 3)


@TOGETHER
async def test_processes_that_make_the_index_at_the_same_time_lose_nothing(
    url: str, writers: int, rounds: int
):
    await asyncio.to_thread(run_together, create, url, writers, rounds)
    for n in range(rounds):
        async with opened(url, table=f"made_{n}") as index:
            assert [await index.count(f"doc-{who}") for who in range(writers)] == [2] * writers


async def test_a_marker_of_a_process_that_died_does_not_stop_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    url = str(tmp_path / "index")
    monkeypatch.setattr("switchyard.services.index.lance_home._CREATION_TIMEOUT", 0.2)
    Path(url).mkdir()
    Path(url, "chunks.creating").touch()
    async with opened(url) as index:
        await put(index, "a", 1)
    assert not Path(url, "chunks.creating").exists()


async def test_both_kinds_of_index_give_the_same_first_ten(tmp_path: Path, pgvector_url: str):
    randomly = random.Random(7)
    made = {
        document_id: [[randomly.gauss(0, 1) for _ in range(DIMENSIONS)] for _ in range(40)]
        for document_id in ("a", "b", "c")
    }
    queries = [[randomly.gauss(0, 1) for _ in range(DIMENSIONS)] for _ in range(20)]
    found = []
    for url in (str(tmp_path / "index"), pgvector_url):
        async with opened(url) as index:
            for document_id, vectors in made.items():
                await index.put("Title", chunks(document_id, 40), vectors)
            await index.compact()
            found.append(
                [
                    [(match.chunk, round(match.similarity, 5)) for match in matches]
                    for query in queries
                    for matches in (
                        await index.nearest(query, 10, exact=True),
                        await index.nearest(query, 10),
                        await index.nearest(query, 10, exact=True, within=["a", "c"]),
                        await index.nearest(query, 10, exact=True, excluding="b"),
                    )
                ]
            )
    assert found[0] == found[1]
    assert [len(matches) for matches in found[0]] == [10] * 80


WORDED = {
    "moon": "The Moon draws the water of the sea, and the tide rises.",
    "bread": "Bread rises when yeast has sugar, water and time.",
    "tea": "Green tea is steeped in water that does not boil.",
    "zh": "月亮引起潮汐，海水每天涨落两次。",
    "mixed": "The tide of the sea rises twice a day, and the tide falls.",
}


async def worded(index: ChunkIndex) -> None:
    for document_id, text in WORDED.items():
        one = [Chunk(chunk_id(document_id, 0), document_id, 0, 1, text)]
        await index.put("Title", one, [vector(1)])


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("moon", "moon"),
        ("the tide", "mixed"),
        ("YEAST", "bread"),
        ("潮汐", "zh"),
        ("steeped", "tea"),
    ],
)
async def test_a_chunk_is_found_by_its_words(url: str, query: str, first: str):
    async with opened(url) as index:
        await worded(index)
        found = await index.with_words(query, 10)
        assert found[0].chunk == Chunk(chunk_id(first, 0), first, 0, 1, WORDED[first])
        assert all(match.relevance > 0 for match in found)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("day", "Every day¹² counts."),
        ("day¹²", "Every day¹² counts."),
        ("day¹²", "A plain day."),
        ("day²", "Every day¹² counts."),
        ("CO₂", "The CO₂ rises."),
        ("co", "The CO₂ rises."),
        ("sample", "A sample₁ of it."),
        ("CO2", "The CO₂ rises."),
        ("CO₂", "The CO2 rises."),
        ("10", "It is 5×10⁵ at most."),
        ("efficient", "An eﬃcient way."),
        ("eﬃcient", "An efficient way."),
        ("full width", "All in ＦＵＬＬ　ＷＩＤＴＨ."),
        ("co\u00adoperation", "The cooperation of all."),
        ("cooperation", "The co\u00adoperation of all."),
        ("strasse", "Die Straße."),
    ],
)
async def test_words_are_found_however_they_are_written(url: str, query: str, text: str):
    async with opened(url) as index:
        one = [Chunk(chunk_id("a", 0), "a", 0, 1, text)]
        await index.put("Title", one, [vector(1)])
        assert [match.chunk.text for match in await index.with_words(query, 10)] == [text]


async def test_words_are_looked_for_within_some_documents(url: str):
    async with opened(url) as index:
        await worded(index)
        assert {match.chunk.document_id for match in await index.with_words("water", 10)} == {
            "moon",
            "bread",
            "tea",
        }
        within = await index.with_words("water", 10, within=["tea", "zh"])
        assert [match.chunk.document_id for match in within] == ["tea"]
        assert await index.with_words("water", 10, within=[]) == []
        assert len(await index.with_words("water", 1)) == 1
        assert {match.chunk.document_id for match in await index.with_words("of the", 10)} >= {
            "moon"
        }
        assert await index.with_words("…", 10) == []


async def test_texts_that_a_database_does_not_take_are_kept_nevertheless(url: str):
    texts = ["zero \0 byte", "half \ud800 pair", "long " + "x" * 5_000]
    if "postgresql" not in url:
        texts.pop(1)  # Arrow has no room for it; no text of a document has one
    async with opened(url) as index:
        some = [Chunk(chunk_id("a", n), "a", n, 1, text) for n, text in enumerate(texts)]
        await index.put("T", some, [vector(0)] * len(some))
        assert [match.chunk.index for match in await index.with_words("zero", 3)] == [0]


async def test_a_documents_texts_come_in_order_and_documents_by_name(url: str):
    async with opened(url) as index:
        assert await index.document_ids() == []
        await put(index, "b", 12)
        await put(index, "A", 1)
        assert await index.document_ids() == ["A", "b"]
        texts = await index.texts_of("b", 5, 4)
        assert [each.chunk for each in texts] == chunks("b", 12)[5:9]
        assert {each.title for each in texts} == {"Title"}
        assert await index.texts_of("nobody", 0, 4) == []


async def test_many_chunks_get_an_index_of_neighbours_that_misses_hardly_any(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    for kind in ("lance", "postgres"):
        monkeypatch.setattr(f"switchyard.services.index.{kind}_table.APPROXIMATE_FROM", 1_000)
    randomly = random.Random(3)
    vectors = [[randomly.gauss(0, 1) for _ in range(DIMENSIONS)] for _ in range(1_500)]
    async with opened(url) as index:
        await index.put("Title", chunks("a", 1_500), vectors)
        await index.compact()
        await put(index, "later", 1)
        shared = 0
        for query in vectors[:20]:
            exact = await index.nearest(query, 10, exact=True)
            quick = await index.nearest(query, 10)
            assert len(quick) == 10
            shared += len({each.chunk.id for each in exact} & {each.chunk.id for each in quick})
        assert shared >= 180
        assert (await index.nearest(vector(0), 1, within=["later"]))[0].chunk.document_id == "later"


async def test_an_index_from_before_words_were_normalised_is_used_and_told_of(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    settings = Settings(index_url=SecretStr(url), embed_offline="hashed", embed_dimensions=64)
    made = embedder_for(settings)
    with monkeypatch.context() as before:
        before.setattr(
            "switchyard.services.index.lance_home.columns_of",
            partial(lance_table.columns_of, has_words=False),
        )
        before.setattr("switchyard.services.index.lance_home.WORDS_COLUMN", "text")
        before.setattr("switchyard.services.index.lance_home.WORDING", 0)
        before.setattr("switchyard.services.index.postgres_table.WORDING", 0)
        async with opened(url, made.name, 64) as index:
            pass
    async with opened(url, made.name, 64) as index:
        one = [Chunk(chunk_id("a", 0), "a", 0, 1, "Every day¹² counts.")]
        await index.put("Title", one, await made.embed(["Every day¹² counts."]))
        assert len(await index.with_words("day", 10)) == 1
    _, check = await look_at_index(settings)
    assert (check.finding, check.remedy) == (Finding.INDEX_WORDS, "jobctl index rebuild --force")
    async with open_index(settings) as whole:
        state = await begin(whole, made, force=True)
        assert state.building is not None
        assert await build(whole, state.building, lambda: False)
        async with whole.searched() as (index, _):
            assert len(await index.with_words("12", 10)) == 1
    (check,) = await look_at_index(settings)
    assert check.status == "ok"
