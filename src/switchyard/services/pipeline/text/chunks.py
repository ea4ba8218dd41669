"""Cut a document's text into chunks, which an embedder can take in and a reader can be shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid5

from switchyard.services.pipeline.text.plain_text import count_words, paragraphs, sentences

CHUNK_WORDS = 180
"""Most words that a chunk has."""
OVERLAP_WORDS = 40
"""Words at the end of a chunk, in whole sentences, that the next chunk repeats."""
_MAX_SENTENCE_CHARACTERS = 2_000
_MAX_FIGURE_CHARACTERS = 4_000
_CHUNK_NAMESPACE = UUID("8f1e4c1a-6f0b-5d8e-9a57-3b1f0c9d2e64")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a document."""

    id: str
    document_id: str
    index: int
    """Number in the document, from 0."""
    page: int
    """Page on which the chunk begins, from 1."""
    text: str


@dataclass(frozen=True, slots=True)
class _Sentence:
    page: int
    text: str
    word_count: int
    opens_paragraph: bool


def chunk_id(document_id: str, index: int) -> str:
    """Return the id of a chunk. It depends on document and place alone, so that writing a document
    again overwrites its chunks."""
    return str(uuid5(_CHUNK_NAMESPACE, f"{document_id}/{index}"))


def figure_chunks(
    document_id: str, first_index: int, figures: Sequence[Mapping[str, Any]]
) -> list[Chunk]:
    """Make a chunk for each figure that was described, numbered from `first_index`, behind
    those of the text."""
    texts = [
        (each["page"], f"{each.get('caption') or ''}\n\n{each['description']}".strip())
        for each in figures
        if each.get("description")
    ]
    return [
        Chunk(chunk_id(document_id, index), document_id, index, page, text[:_MAX_FIGURE_CHARACTERS])
        for index, (page, text) in enumerate(texts, first_index)
    ]


def split_into_chunks(document_id: str, pages: Sequence[Mapping[str, Any]]) -> list[Chunk]:
    """Split a document's pages, each with `page` (a number) and `text`, into chunks.

    Chunks are whole sentences in their order, with overlap; a paragraph begins a new chunk once the
    current one is at least 80 % full.
    """
    chunks: list[Chunk] = []
    current: list[_Sentence] = []
    word_count = 0
    new_count = 0  # sentences in `current` that are in no chunk yet

    def close() -> None:
        nonlocal current, word_count, new_count
        index = len(chunks)
        text = _join(current)
        chunks.append(
            Chunk(chunk_id(document_id, index), document_id, index, current[0].page, text)
        )
        current = _tail(current)
        word_count = sum(sentence.word_count for sentence in current)
        new_count = 0

    for sentence in _all_sentences(pages):
        is_full = word_count + sentence.word_count > CHUNK_WORDS
        is_good_place = sentence.opens_paragraph and word_count >= 0.8 * CHUNK_WORDS
        if new_count and (is_full or is_good_place):
            close()
            if word_count + sentence.word_count > CHUNK_WORDS:
                # Overlap and a very long sentence do not fit into one chunk.
                current, word_count = [], 0
        current.append(sentence)
        word_count += sentence.word_count
        new_count += 1
    if new_count:
        close()
    return chunks


def _all_sentences(pages: Sequence[Mapping[str, Any]]) -> Iterator[_Sentence]:
    for page in pages:
        for paragraph in paragraphs(page["text"]):
            opens_paragraph = True
            for sentence in sentences(paragraph):
                for piece in _pieces(sentence):
                    yield _Sentence(page["page"], piece, _word_count(piece), opens_paragraph)
                    opens_paragraph = False


def _pieces(sentence: str) -> Iterator[str]:
    """Yield a sentence, or parts of it that fit into a chunk, as tables and data have no sentence
    ends."""
    if len(sentence) <= _MAX_SENTENCE_CHARACTERS and _word_count(sentence) <= CHUNK_WORDS:
        yield sentence
        return
    piece: list[str] = []
    word_count = character_count = 0
    for word in sentence.split(" "):
        for start in range(0, len(word), _MAX_SENTENCE_CHARACTERS):
            part = word[start : start + _MAX_SENTENCE_CHARACTERS]
            part_words = _word_count(part)
            if piece and (
                word_count + part_words > CHUNK_WORDS
                or character_count + len(part) + 1 > _MAX_SENTENCE_CHARACTERS
            ):
                yield " ".join(piece)
                piece, word_count, character_count = [], 0, 0
            piece.append(part)
            word_count += part_words
            character_count += len(part) + 1
    if piece:
        yield " ".join(piece)


def _word_count(text: str) -> int:
    """Return the number of words in a text. A long word counts as one for each dozen of characters:
    an endless word is data."""
    return max(count_words(text), len(text) // 12, 1)


def _join(chunk: Sequence[_Sentence]) -> str:
    text = ""
    for sentence in chunk:
        separator = ("\n\n" if sentence.opens_paragraph else " ") if text else ""
        text += separator + sentence.text
    return text


def _tail(chunk: Sequence[_Sentence]) -> list[_Sentence]:
    """Return the last sentences, which are the overlap; none when the chunk is one sentence."""
    sentences: list[_Sentence] = []
    word_count = 0
    for sentence in reversed(chunk[1:]):
        word_count += sentence.word_count
        if word_count > OVERLAP_WORDS:
            break
        sentences.insert(0, sentence)
    return sentences
