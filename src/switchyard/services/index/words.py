"""The index of words: LanceDB's own full-text index over the chunks' text.

Rows that came after the index was last brought up to date are searched one by one, so what was
just written is found; `ChunkIndex.optimize` brings it up to date.
"""

from __future__ import annotations

import re
from typing import Any

from switchyard.services.text.plain import content_words, numbers_apart

MAX_QUERY_WORDS = 64
_WORDS = re.compile(r"[^\W_]+(?:['’.-][^\W_]+)*")


async def has_word_index(table: Any) -> bool:
    """Whether the table can be searched by words."""
    return any(list(index.columns) == ["text"] for index in await table.list_indices())


async def add_word_index(table: Any) -> None:
    """Make the index. Words are told apart by Unicode's rules and dictionaries, so Chinese,
    Japanese and Thai have words, too; no stemming, for documents come in many languages."""
    from lancedb.index import FTS

    config = FTS(base_tokenizer="icu", stem=False, remove_stop_words=False)
    await table.create_index("text", config=config)


def words_query(text: str) -> str | None:
    """The words of a query that say something; all of them where none does; None without any."""
    words = _WORDS.findall(numbers_apart(text))
    telling = [word for word in words if content_words(word)]
    return " ".join((telling or words)[:MAX_QUERY_WORDS]) or None
