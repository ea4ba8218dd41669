"""Chunks cover a document, in order, under ids that never change."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from switchyard.services.pipeline.samples.article_texts import ARTICLES
from switchyard.services.pipeline.text.chunks import (
    CHUNK_WORDS,
    OVERLAP_WORDS,
    chunk_id,
    split_into_chunks,
)
from switchyard.services.pipeline.text.plain_text import count_words, words

PAGES = [{"page": n, "text": article.text} for n, article in enumerate(ARTICLES, start=1)]


def test_ids_are_the_same_for_the_same_place_and_differ_otherwise():
    assert chunk_id("a", 0) == chunk_id("a", 0) == str(UUID(chunk_id("a", 0)))
    assert len({chunk_id(document, n) for document in "abc" for n in range(100)}) == 300


def test_the_id_of_a_chunk_is_the_one_that_existing_indexes_hold():
    assert chunk_id("doc", 0) == "7eb003c6-5881-58e1-abf7-c5f3a0c4a3d0"


def test_every_word_of_the_document_is_in_a_chunk():
    chunks = split_into_chunks("doc", PAGES)
    words_of_chunks = {word for chunk in chunks for word in words(chunk.text)}
    assert words_of_chunks == {word for page in PAGES for word in words(str(page["text"]))}


def test_chunks_are_about_as_long_as_they_should_be():
    sizes = [count_words(chunk.text) for chunk in split_into_chunks("doc", PAGES)]
    assert max(sizes) <= CHUNK_WORDS
    assert min(sizes[:-1]) >= CHUNK_WORDS // 2


def test_neighbours_overlap_in_whole_sentences():
    chunks = split_into_chunks("doc", PAGES[:1])
    overlap = [sentence for sentence in chunks[0].text.split(". ") if sentence in chunks[1].text]
    assert overlap
    assert count_words(" ".join(overlap)) <= OVERLAP_WORDS + 5


def test_a_chunk_knows_the_page_on_which_it_begins():
    for chunk in split_into_chunks("doc", PAGES):
        beginning = chunk.text.split(". ")[0].split("\n\n")[0]
        assert beginning in str(PAGES[chunk.page - 1]["text"])


def test_indexes_count_from_zero():
    chunks = split_into_chunks("doc", PAGES)
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))


def test_the_same_text_gives_the_same_chunks():
    assert split_into_chunks("doc", PAGES) == split_into_chunks("doc", PAGES)


def test_an_empty_document_has_no_chunks():
    assert split_into_chunks("doc", [{"page": 1, "text": ""}, {"page": 2, "text": " \n\n "}]) == []


def test_a_text_without_sentences_is_cut_nevertheless():
    blob, table = "QUJD" * 5000, "12.5 " * 5000
    for text in (blob, table):
        chunks = split_into_chunks("doc", [{"page": 1, "text": text}])
        assert max(len(chunk.text) for chunk in chunks) < 10_000
        joined = "".join("".join(chunk.text.split()) for chunk in chunks)
        assert len(joined) >= len("".join(text.split()))


@given(st.lists(st.text(max_size=500), max_size=5))
def test_any_text_can_be_cut(texts: list[str]):
    pages = [{"page": n, "text": text} for n, text in enumerate(texts, start=1)]
    chunks = split_into_chunks("doc", pages)
    assert all(chunk.text.strip() for chunk in chunks)
    assert bool(chunks) == any(text.strip() for text in texts)
