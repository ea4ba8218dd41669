"""The words of a query and of the chunks: stemmed in one way, and LanceDB's index of them.

Rows that came after the index was last brought up to date are searched one by one, so what was
just written is found; `ChunkIndex.compact` brings it up to date.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from switchyard.services.pipeline.text.plain_text import (
    content_words,
    has_marks,
    is_in_pairs,
    normalised,
    words,
)
from switchyard.services.pipeline.text.stems import language_of, query_words

TOKENIZER_VERSION = 3
"""How the words of chunks are kept. Counted up when `stems.stems` or `stems.stemmed` give other
words for a text: an index of another number misses some of what it is asked for, until it is built
anew."""
STEMMED_FROM = 3
"""Version from which an index keeps stems; an older one is asked for words as they are written."""
MAX_QUERY_WORDS = 64
_WORDS = re.compile(r"[^\W_]+(?:['’.-][^\W_]+)*")


async def has_word_index(table: Any, column: str) -> bool:
    """Tell whether the table can be searched by the words of that column."""
    return any(list(index.columns) == [column] for index in await table.list_indices())


async def add_word_index(table: Any, column: str) -> None:
    """Make the index. Words are told apart by Unicode's rules and dictionaries, so Chinese,
    Japanese and Thai have words, too; stems are kept in the column, for documents come in many
    languages."""
    from lancedb.index import FTS

    config = FTS(base_tokenizer="icu", stem=False, remove_stop_words=False)
    await table.create_index(column, config=config)


def query_terms(text: str, *, has_stems: bool = True) -> list[tuple[str, ...]]:
    """Return the words of a query as PostgreSQL's index and the ranking compare them: each with all
    forms that count as this word; as they are written for an index without stems."""
    if has_stems:
        return query_words(text, MAX_QUERY_WORDS, language_of(text))
    found = dict.fromkeys(content_words(text) or words(text))
    return [(word,) for word in islice(found, MAX_QUERY_WORDS)]


def full_text_query(text: str, *, has_stems: bool = True) -> str | None:
    """Return a query as the text that LanceDB's full-text index cuts into words itself: the words
    that say something, or all of them where none does; None without any. Where spaces are written,
    all forms of each word, but for an index without stems."""
    # One by one: what is behind the last word that counts is not looked at.
    plain = normalised(text)
    content = frozenset(content_words(text))
    telling = (run for run in _words(plain) if not content.isdisjoint(words(run)))
    query_words = list(islice(telling, MAX_QUERY_WORDS)) or list(
        islice(_words(plain), MAX_QUERY_WORDS)
    )
    if has_marks(plain):
        query_words = plain.split()[:MAX_QUERY_WORDS]  # the index cuts these, by dictionaries
    if has_stems:
        language = language_of(text)
        query_words = list(
            dict.fromkeys(form for run in query_words for form in _forms_of(run, language))
        )
    return " ".join(query_words) or None


def _forms_of(run: str, language: str | None) -> list[str]:
    """Return the forms that find the stems of a run of letters."""
    if is_in_pairs(run) or has_marks(run):
        return [run]
    return [form for word in query_words(run, MAX_QUERY_WORDS, language) for form in word]


def _words(text: str) -> Iterator[str]:
    return (match.group() for match in _WORDS.finditer(text))
