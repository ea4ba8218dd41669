"""The words of a query and of the chunks: normalised in one way, and LanceDB's index of them.

Rows that came after the index was last brought up to date are searched one by one, so what was
just written is found; `ChunkIndex.compact` brings it up to date.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from switchyard.services.pipeline.text.plain import content_words, normalised

TOKENIZER_VERSION = 2
"""How the words of chunks are kept. Counted up when `plain.words` or `plain.normalised` give other
words for a text: an index of another number misses some of what it is asked for, until it is built
anew."""
MAX_QUERY_WORDS = 64
_WORDS = re.compile(r"[^\W_]+(?:['’.-][^\W_]+)*")


async def has_word_index(table: Any, column: str) -> bool:
    """Whether the table can be searched by the words of that column."""
    return any(list(index.columns) == [column] for index in await table.list_indices())


async def add_word_index(table: Any, column: str) -> None:
    """Make the index. Words are told apart by Unicode's rules and dictionaries, so Chinese,
    Japanese and Thai have words, too; no stemming, for documents come in many languages."""
    from lancedb.index import FTS

    config = FTS(base_tokenizer="icu", stem=False, remove_stop_words=False)
    await table.create_index(column, config=config)


def words_query(text: str) -> str | None:
    """The words of a query that say something; all of them where none does; None without any."""
    # One by one: what is behind the last word that counts is not looked at.
    plain = normalised(text)
    telling = islice(filter(content_words, _words(plain)), MAX_QUERY_WORDS)
    return " ".join(telling) or " ".join(islice(_words(plain), MAX_QUERY_WORDS)) or None


def _words(text: str) -> Iterator[str]:
    return (match.group() for match in _WORDS.finditer(text))
