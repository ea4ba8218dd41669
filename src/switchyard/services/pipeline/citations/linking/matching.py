"""Decide, with pure functions, how well a work fits a reference, and which of several works
fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

from switchyard.services.pipeline.citations.cited_works import (
    Candidate,
    CitedWork,
    LinkStatus,
    WorkLink,
)
from switchyard.services.pipeline.citations.linking.work_questions import words_of
from switchyard.services.pipeline.citations.reference import Reference

THRESHOLD = 0.8
"""Lowest score at which a work found by search is linked."""
MARGIN = 0.08
"""Smallest difference between a linked work's score and that of the next best work."""
MIN_CANDIDATE_SCORE = 0.5
MIN_TITLE_LIKENESS = 0.4
"""Lowest likeness of the titles at which a work found by an identifier is linked."""
MAX_CANDIDATES = 5
_WEIGHTS = {"title": 0.6, "authors": 0.2, "year": 0.15, "container": 0.05}
_MAX_COMPARED = 300
"""Characters of a title that are compared."""
_DIFFERENT_NUMBERS_FACTOR = 0.75
"""Factor for the likeness of titles in which the numbers differ."""


def score(reference: Reference, work: CitedWork) -> float:
    """Return how well a work fits a reference, 0 to 1. Fields that either lacks do not count; if
    the titles differ, the other fields count little."""
    likenesses = {
        "title": title_likeness(reference.title, work.title),
        "authors": _compare_authors(reference, work),
        "year": _compare_years(reference.year, work.year),
        "container": _compare_containers(reference.container, work.container),
    }
    known_likenesses = {name: value for name, value in likenesses.items() if value is not None}
    if "title" not in known_likenesses:
        return 0.0
    weight = sum(_WEIGHTS[name] for name in known_likenesses)
    mean = sum(_WEIGHTS[name] * value for name, value in known_likenesses.items()) / weight
    return round(mean * min(1.0, known_likenesses["title"] / THRESHOLD), 3)


def choose_work(reference: Reference, works: Iterable[tuple[str, CitedWork]]) -> WorkLink:
    """Choose the work that a reference means from those that a search has found, each with the name
    of its catalogue."""
    best: dict[str, tuple[float, str, CitedWork]] = {}
    for provider, work in works:
        fit = score(reference, work)
        if fit > best.get(work.id, (0.0,))[0]:
            best[work.id] = fit, provider, work
    # The best first; ids keep the order of equal scores stable.
    ranked = sorted(best.values(), key=lambda each: (-each[0], each[2].id))
    candidates = [Candidate(fit, work) for fit, _, work in ranked if fit >= MIN_CANDIDATE_SCORE]
    if not candidates:
        return WorkLink(LinkStatus.NOT_FOUND)
    fit, provider, work = ranked[0]
    others = [each.score for each in candidates[1:]]
    if fit >= THRESHOLD and fit - max(others, default=0.0) >= MARGIN:
        return WorkLink(LinkStatus.LINKED, "search", provider, fit, work)
    return WorkLink(
        LinkStatus.AMBIGUOUS, "search", provider, fit, candidates=tuple(candidates[:MAX_CANDIDATES])
    )


def link_by_identifier(
    reference: Reference, method: str, provider: str, work: CitedWork
) -> WorkLink:
    """Link the work that has the reference's identifier. An identifier may be wrong, so a work with
    quite another title is only a candidate."""
    likeness = title_likeness(reference.title, work.title)
    fit = score(reference, work) if likeness is not None else 1.0
    if likeness is not None and likeness < MIN_TITLE_LIKENESS:
        candidates = (Candidate(fit, work),)
        return WorkLink(LinkStatus.AMBIGUOUS, method, provider, fit, candidates=candidates)
    return WorkLink(LinkStatus.LINKED, method, provider, fit, work)


def title_likeness(title: str, other: str) -> float | None:
    """Return how alike two titles are, 0 to 1; None where one of them is empty. A missing subtitle
    matters little."""
    first, second = words_of(title), words_of(other)
    if not first or not second:
        return None
    shorter, longer = sorted((first, second), key=len)
    if len(shorter) >= 4 and longer[: len(shorter)] == shorter:
        return max(0.9, len(shorter) / len(longer))
    likeness = SequenceMatcher(
        None, " ".join(first)[:_MAX_COMPARED], " ".join(second)[:_MAX_COMPARED], autojunk=False
    ).ratio()
    return likeness if _numbers(first) == _numbers(second) else likeness * _DIFFERENT_NUMBERS_FACTOR


def _numbers(words: Sequence[str]) -> set[str]:
    """Return the numbers in a title: part 2 is another work than part 3, however similar the
    words."""
    return {word for word in words if word[0].isdigit()}


def _compare_authors(reference: Reference, work: CitedWork) -> float | None:
    """Return the share of the reference's authors, five at most, that the work has."""
    if not reference.authors or not work.authors:
        return None
    names = {word for person in work.authors for word in words_of(str(person))}
    families = [words_of(person.family) for person in reference.authors[:5]]
    families = [words for words in families if words]
    if not families:
        return None
    return sum(words[-1] in names for words in families) / len(families)


def _compare_years(year: int | None, other: int | None) -> float | None:
    """Return how well two years fit: a preprint is often a year older than the printed work."""
    if year is None or other is None:
        return None
    return {0: 1.0, 1: 0.7, 2: 0.3}.get(abs(year - other), 0.0)


def _compare_containers(name: str, other: str) -> float | None:
    """Return how well two containers' names fit. Abbreviations (Commun. ACM) count by the
    beginnings of their words."""
    first, second = words_of(name), words_of(other)
    if not first or not second:
        return None
    return max(_prefix_share(first, second), _prefix_share(second, first))


def _prefix_share(abbreviations: Sequence[str], words: Sequence[str]) -> float:
    return sum(
        any(word.startswith(abbreviation) for word in words) for abbreviation in abbreviations
    ) / len(abbreviations)
