"""Texts made to be slow to read, and the processor time that reading them takes.

`python -m tests.support.hostile_texts 250000,1000000` reads each shape at each of these numbers of
characters, in a process that can be killed, and prints a JSON object of processor seconds by shape.
"""

from __future__ import annotations

import json
import sys
import time

from switchyard.services.engine.dead.causes import cause_of
from switchyard.services.pipeline.index.hashed_embedder import HashedEmbedder
from switchyard.services.pipeline.index.word_index import full_text_query
from switchyard.services.pipeline.text.chunks import split_into_chunks
from switchyard.services.pipeline.text.extractive_summary import summarize
from switchyard.services.pipeline.text.plain_text import (
    clean,
    content_words,
    count_words,
    shorten,
    words,
)
from switchyard.services.pipeline.text.sections import fit, sections_of
from switchyard.services.pipeline.workers.summaries import summary_messages

SHAPES = {
    "dots": ".",
    "dots and a letter": "....x",
    "dots and quotes": '."""',
    "initials": "A. ",
    "abbreviations": "U.S.A.",
    "accents out of order": "\u0301\u0323",
    "marks that come apart": "\u0f73",
    "signs that are kept": "\u093c\u094d",
    "voicing marks": "\u3099",
    "a letter that is eighteen": "\ufdfa",
    "one word": "a",
    "words": "ab ",
    "apostrophes": "a'",
    "hyphens": "a-\n",
    "Chinese": "\u65e5",
    "Chinese full stops": "\u3002",
    "line ends": "\n\n",
    "line ends and spaces": "\n ",
    "rare spaces": "<\u205f\u205f",
    "control characters": "\x01",
    "emoji": "\U0001f600 ",
    "sentences": "Wort an Wort steht hier nun. ",
    "headings": "# a\n\n",
    "paragraphs": "The one has five words.\n\n",
    "frames": '\nFile "',
    "addresses": "a+b-c.",
    "paths": "/a-b:c.d",
}


def make_text(shape: str, characters: int) -> str:
    """Make a text of that shape and length."""
    unit = SHAPES[shape]
    return (unit * (characters // len(unit) + 1))[:characters]


def read(text: str) -> None:
    """Do everything that the pipeline, the search and the dead letters do with a foreign text."""
    cleaned = clean(text)
    count_words(cleaned)
    words(cleaned)
    content_words(text)
    full_text_query(text)
    shorten(text, 300)
    chunks = split_into_chunks("d", [{"page": 1, "text": cleaned}])
    summarize([cleaned], "A title")
    fitting, _ = fit(sections_of([cleaned]), 24_000)
    summary_messages("A title", fitting + text[:24_000])
    HashedEmbedder(64).embed_now([chunk.text for chunk in chunks[:100]])
    cause_of("exhausted", "noop", "Error", text, text)


def seconds(text: str) -> float:
    """Return the processor time of reading a text."""
    before = time.process_time()
    read(text)
    return time.process_time() - before


if __name__ == "__main__":
    sizes = [int(size) for size in sys.argv[1].split(",")]
    texts = {shape: [make_text(shape, size) for size in sizes] for shape in sys.argv[2:] or SHAPES}
    print(json.dumps({shape: [seconds(text) for text in each] for shape, each in texts.items()}))
