"""Citation keys for the references of a list: short, plain ASCII, and unique."""

import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence

from switchyard.services.pipeline.citations.reference import Reference
from switchyard.services.pipeline.text.stopwords import stop_words_among

_WORD = re.compile(r"[a-z0-9]+")
_MAX_WORD_LENGTH = 24
"""Characters of a name or of a title's word in a key."""


def citation_keys_of(references: Sequence[Reference]) -> list[str]:
    """Return a key for each reference, such as lamport1978time: a–z and 0–9, none of them twice.

    The same references in the same order have the same keys.
    """
    used_keys: set[str] = set()
    keys = []
    for reference in references:
        base = _base_key(reference)
        key = next(
            key for key in itertools.chain([base], _suffixed_keys(base)) if key not in used_keys
        )
        used_keys.add(key)
        keys.append(key)
    return keys


def _base_key(reference: Reference) -> str:
    name = reference.authors[0].family if reference.authors else ""
    title = _words(reference.title)
    stop_words = stop_words_among(title)
    words = [word for word in title if word not in stop_words and len(word) > 1]
    parts = "".join(_words(name))[:_MAX_WORD_LENGTH], str(reference.year or ""), "".join(words[:1])
    key = "".join(parts)[: 3 * _MAX_WORD_LENGTH]
    return key if key[:1].isalpha() else f"ref{key}"


def _suffixed_keys(base: str) -> Iterator[str]:
    for number in itertools.count(2):
        yield f"{base}_{number}"


def _words(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKD", text).casefold().encode("ascii", "ignore").decode()
    return [word[:_MAX_WORD_LENGTH] for word in _WORD.findall(plain)]
