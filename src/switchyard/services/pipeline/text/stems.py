"""The stems of words, by which a search for `wing` finds `wings`.

A text is stemmed in its own language if its stop words tell the language; otherwise as English,
which only changes the endings of Latin words. Few queries tell their language, so each word of
other queries stands for its stems in all languages: it finds the same word in every text.
"""

from __future__ import annotations

import re
from functools import lru_cache

from switchyard.services.pipeline.text.plain_text import (
    WORD,
    accented_words,
    content_words,
    has_cjk,
    has_combining_marks,
    normalised,
    without_accents,
    words,
)
from switchyard.services.pipeline.text.stopwords import (
    STOP_WORDS_BY_LANGUAGE,
    languages_of,
)

_FALLBACK = "english"
_MIN_STOP_WORD_SHARE = 0.1
"""Part of a text's words, at least, that are stop words of its language; in most languages they are
a third and more."""
_MAX_STEMMED_CHARACTERS = 40
"""Longer runs of letters are not stemmed, as no language inflects them."""
_CACHED_STEMS = 100_000
"""Pairs of word and language whose stems are cached."""


def language_of(text: str) -> str | None:
    """Return the language of a text by Snowball's name; None where its stop words don't tell."""
    text_words = words(text)
    languages = languages_of(text_words)
    if len(languages) != 1:
        return None
    [language] = languages
    stop_word_count = sum(word in STOP_WORDS_BY_LANGUAGE[language] for word in text_words)
    return language if stop_word_count > _MIN_STOP_WORD_SHARE * len(text_words) else None


def stems(text: str) -> list[str]:
    """Cut a text into words as `words` does, and return their stems in the text's language."""
    language = language_of(text) or _FALLBACK
    return [_stem(word, language) for word in accented_words(text)]


def stemmed(text: str) -> str:
    """Return a text with each word replaced by its stem, for an index that cuts it into words
    itself. Chinese, Japanese and scripts that write vowels as marks are unchanged."""
    language = language_of(text) or _FALLBACK
    plain = normalised(text)
    if has_combining_marks(plain):
        if language != "arabic":
            return plain
        plain = without_accents(plain)

    def stem_of_match(match: re.Match[str]) -> str:
        word = match.group()
        return word if has_cjk(word) else _stem(word, language)

    return WORD.sub(stem_of_match, plain)


def forms(word: str) -> tuple[str, ...]:
    """Return the different stems that a word has in all languages; for Chinese and Japanese, the
    stems of its pairs of characters."""
    if has_cjk(word):
        return tuple(dict.fromkeys(words(word)))
    return _forms(word)


def query_words(text: str, limit: int, language: str | None) -> list[tuple[str, ...]]:
    """Return the different words of a query that say something (all words if none does), at most
    `limit`, each in all forms that it may have in a text of that language; in texts of any language
    where `language` is None. Two words with a form in common are one."""
    content = frozenset(content_words(text))
    forms: list[tuple[str, ...]] = []
    seen_forms: set[str] = set()
    for word in dict.fromkeys(accented_words(text)):
        if content and without_accents(word) not in content:
            continue
        word_forms = _forms(word) if language is None else _forms_in(word, language)
        if seen_forms.isdisjoint(word_forms):
            forms.append(word_forms)
        seen_forms.update(word_forms)
        if len(forms) == limit:
            break
    return forms


@lru_cache(maxsize=_CACHED_STEMS)
def _forms(word: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_stem(word, language) for language in STOP_WORDS_BY_LANGUAGE))


def _forms_in(word: str, language: str) -> tuple[str, ...]:
    """Return the forms of a word in texts of a language, and in texts to which it is foreign."""
    return tuple(dict.fromkeys((_stem(word, language), without_accents(word))))


@lru_cache(maxsize=_CACHED_STEMS)
def _stem(word: str, language: str) -> str:
    """Stem a folded word, without accents, as many words are written without. A stemmer has a
    state, so threads must not share one."""
    from Stemmer import Stemmer

    if len(word) > _MAX_STEMMED_CHARACTERS:
        return without_accents(word)
    return without_accents(Stemmer(language, 0).stemWord(word)) or word
