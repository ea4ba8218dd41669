"""Classify by keywords, in time proportional to the text's length, whatever text and keywords
are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from switchyard.services.pipeline.classes.class_definitions import MAX_KEYWORD_WORDS, RuleKind
from switchyard.services.pipeline.records.documents import DocumentClass
from switchyard.services.pipeline.text.plain_text import words

_MAX_COUNTED = 3
"""Occurrences of one keyword that count at most."""
_WINDOW_SIZE = 200_000
"""Characters that are cut into words at once, as a list of all words would take much memory."""
_MAX_STORED = 30
"""Most keywords that are stored with a class."""

Phrase = tuple[str, ...]


class KeywordFinder:
    """Finds keywords in texts: as whole words, or, if they end with *, as beginnings of words."""

    def __init__(self, keywords: Iterable[str]) -> None:
        self._whole_keywords: dict[Phrase, list[str]] = {}
        self._prefix_keywords: dict[Phrase, list[str]] = {}
        """The keywords by their words, those that end with * apart; two labels may spell the same
        words differently."""
        self._word_counts: dict[str, set[int]] = {}
        """By their first word, how many words the phrases have."""
        self._prefix_lengths: set[int] = set()
        """Lengths, in letters, of the last words of keywords that end with *."""
        for keyword in keywords:
            phrase = tuple(words(_straighten_apostrophes(keyword)))
            is_prefix = keyword.endswith("*")
            (self._prefix_keywords if is_prefix else self._whole_keywords).setdefault(
                phrase, []
            ).append(keyword)
            if is_prefix:
                self._prefix_lengths.add(len(phrase[-1]))
            if not is_prefix or len(phrase) > 1:
                self._word_counts.setdefault(phrase[0], set()).add(len(phrase))

    def count(self, texts: Iterable[str]) -> Counter[str]:
        """Count how often each keyword is in the texts."""
        counts: Counter[str] = Counter()
        for text in texts:
            carried: list[str] = []
            for window in _windows(text):
                window_words = carried + words(_straighten_apostrophes(window))
                self._count(window_words, len(carried), counts)
                carried = window_words[-(MAX_KEYWORD_WORDS - 1) :]
        return counts

    def _count(self, text: Sequence[str], seen_words: int, counts: Counter[str]) -> None:
        """Count the keywords that end behind the first `seen_words` words, which were searched
        before."""
        for index, word in enumerate(text):
            for length in self._word_counts.get(word, ()):
                if seen_words < index + length <= len(text):
                    self._count_phrase(tuple(text[index : index + length]), counts)
            if index >= seen_words and self._prefix_lengths:
                self._count_prefixes((), word, counts)

    def _count_phrase(self, phrase: Phrase, counts: Counter[str]) -> None:
        counts.update(self._whole_keywords.get(phrase, ()))
        if len(phrase) > 1:
            self._count_prefixes(phrase[:-1], phrase[-1], counts)

    def _count_prefixes(self, before: Phrase, last: str, counts: Counter[str]) -> None:
        for length in self._prefix_lengths:
            if len(last) >= length:
                counts.update(self._prefix_keywords.get((*before, last[:length]), ()))


def classes_by_keywords(
    name: str, kind: RuleKind, counts: Mapping[str, int]
) -> list[DocumentClass]:
    """Return the class of a text by the counts of its keywords."""
    points = {
        label: sum(
            points * min(counts[keyword], _MAX_COUNTED)
            for keyword, points in definition.keywords.items()
            if keyword in counts
        )
        for label, definition in kind.labels.items()
    }
    label = next(
        (each for each, definition in kind.labels.items() if points[each] >= definition.at_least),
        None,
    )
    chosen = label or kind.otherwise
    if chosen is None:
        return []
    weights = kind.labels[label].keywords if label else {}
    matched = sorted(
        (each for each in weights if each in counts), key=lambda each: (-weights[each], each)
    )
    why = {
        "by": "rules",
        "keywords": {each: counts[each] for each in matched[:_MAX_STORED]},
        "points": {each: round(value, 4) for each, value in points.items()},
    }
    return [DocumentClass(name, chosen, round(points.get(chosen, 0.0), 4), why)]


def _straighten_apostrophes(text: str) -> str:
    return text.replace("’", "'")


def _windows(text: str) -> Iterator[str]:
    """Cut a text into parts that end between words, where there is such a place."""
    start = 0
    while start < len(text):
        end = start + _WINDOW_SIZE
        if end < len(text):
            end = max(text.rfind(" ", start, end), text.rfind("\n", start, end)) + 1 or end
            end = end if end > start else start + _WINDOW_SIZE
        yield text[start:end]
        start = end
