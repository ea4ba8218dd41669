"""The words of queries and of chunks, stemmed in the same way, and LanceDB's index of them.

Rows that are newer than the index are searched one by one, so that they are found; `ChunkIndex.
compact` brings the index up to date.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from switchyard.services.pipeline.text.plain_text import (
    content_words,
    has_cjk,
    has_combining_marks,
    normalised,
    words,
)
from switchyard.services.pipeline.text.stems import language_of, query_words

TOKENIZER_VERSION = 3
"""Version of the words that are stored of chunks. To be raised when `stems.stems` or
`stems.stemmed` return other words for a text: an index of another version misses some matches until
it is rebuilt."""
STEMMED_FROM = 3
"""Version from which an index has stems; an older index is searched for words as they are
written."""
MAX_QUERY_WORDS = 64
_RUN = re.compile(r"[^\W_]+(?:['’.-][^\W_]+)*")


async def has_word_index(table: Any, column: str) -> bool:
    """Return whether a table can be searched by the words of that column."""
    return any(list(index.columns) == [column] for index in await table.list_indices())


async def add_word_index(table: Any, column: str) -> None:
    """Make the index. Text is divided into words by Unicode's rules and dictionaries, so Chinese,
    Japanese and Thai have words, too. The column holds stems already: LanceDB would stem in one
    language, and documents come in many."""
    from lancedb.index import FTS

    config = FTS(base_tokenizer="icu", stem=False, remove_stop_words=False)
    await table.create_index(column, config=config)


def query_terms(text: str, *, has_stems: bool = True) -> list[tuple[str, ...]]:
    """Return the words of a query as PostgreSQL's index and the ranking compare them: each with all
    forms that count as this word, or as it is written, for an index without stems."""
    if has_stems:
        return query_words(text, MAX_QUERY_WORDS, language_of(text))
    query_words_once = dict.fromkeys(content_words(text) or words(text))
    return [(word,) for word in islice(query_words_once, MAX_QUERY_WORDS)]


def full_text_query(text: str, *, has_stems: bool = True) -> str | None:
    """Return a query as text that LanceDB's full-text index cuts into words itself: its content
    words, or all words if it has no others; None without words. In scripts that put spaces between
    words, each word in all its forms, unless the index has no stems."""
    plain = normalised(text)
    content_forms = frozenset(content_words(text))
    # A generator: runs behind the last one that counts are not compared.
    content_runs = (run for run in _runs(plain) if not content_forms.isdisjoint(words(run)))
    runs = list(islice(content_runs, MAX_QUERY_WORDS)) or list(
        islice(_runs(plain), MAX_QUERY_WORDS)
    )
    if has_combining_marks(plain):
        runs = plain.split()[:MAX_QUERY_WORDS]  # the index cuts these, by dictionaries
    if has_stems:
        language = language_of(text)
        runs = list(dict.fromkeys(form for run in runs for form in _forms_of(run, language)))
    return " ".join(runs) or None


def _forms_of(run: str, language: str | None) -> list[str]:
    """Return the forms that find the stems of a run of letters."""
    if has_cjk(run) or has_combining_marks(run):
        return [run]
    return [form for word in query_words(run, MAX_QUERY_WORDS, language) for form in word]


def _runs(text: str) -> Iterator[str]:
    """Yield the runs of letters and digits between spaces and signs."""
    return (match.group() for match in _RUN.finditer(text))
