"""How well a work fits a reference, and which of several it is: pure, so its rules are tested as
tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

from switchyard.services.pipeline.citations.linking.questions import words_of
from switchyard.services.pipeline.citations.reference import Reference
from switchyard.services.pipeline.citations.works import Candidate, CitedWork, LinkStatus, WorkLink

THRESHOLD = 0.8
"""Least score of a work that a search has found."""
MARGIN = 0.08
"""What it must be better by than the next."""
WORTH_KEEPING = 0.5
"""Least score of a candidate."""
SAME_TITLE = 0.4
"""Least likeness of the titles where an identifier names the work."""
MAX_CANDIDATES = 5
_WEIGHTS = {"title": 0.6, "authors": 0.2, "year": 0.15, "container": 0.05}
_SIGNS = 300
_OTHER_NUMBERS = 0.75


def score(reference: Reference, work: CitedWork) -> float:
    """How well the work fits, 0 to 1. What either does not say counts for nothing, and a title
    that is another leaves little of the rest."""
    found = {
        "title": title_likeness(reference.title, work.title),
        "authors": _authors(reference, work),
        "year": _years(reference.year, work.year),
        "container": _container(reference.container, work.container),
    }
    told = {name: value for name, value in found.items() if value is not None}
    if "title" not in told:
        return 0.0
    weight = sum(_WEIGHTS[name] for name in told)
    whole = sum(_WEIGHTS[name] * value for name, value in told.items()) / weight
    return round(whole * min(1.0, told["title"] / THRESHOLD), 3)


def chosen(reference: Reference, works: Iterable[tuple[str, CitedWork]]) -> WorkLink:
    """Which of the works that a search has found it is; each with the catalogue that knows it."""
    best: dict[str, tuple[float, str, CitedWork]] = {}
    for provider, work in works:
        fit = score(reference, work)
        if fit > best.get(work.id, (0.0,))[0]:
            best[work.id] = fit, provider, work
    ranked = sorted(best.values(), key=lambda each: (-each[0], each[2].id))
    kept = [Candidate(fit, work) for fit, _, work in ranked if fit >= WORTH_KEEPING]
    if not kept:
        return WorkLink(LinkStatus.NOT_FOUND)
    fit, provider, work = ranked[0]
    others = [each.score for each in kept[1:]]
    if fit >= THRESHOLD and fit - max(others, default=0.0) >= MARGIN:
        return WorkLink(LinkStatus.LINKED, "search", provider, fit, work)
    return WorkLink(
        LinkStatus.AMBIGUOUS, "search", provider, fit, candidates=tuple(kept[:MAX_CANDIDATES])
    )


def named(reference: Reference, means: str, provider: str, work: CitedWork) -> WorkLink:
    """The link to the work that has the reference's identifier; an identifier may be wrong, so
    with quite another title it is no more than a candidate."""
    likeness = title_likeness(reference.title, work.title)
    fit = score(reference, work) if likeness is not None else 1.0
    if likeness is not None and likeness < SAME_TITLE:
        candidates = (Candidate(fit, work),)
        return WorkLink(LinkStatus.AMBIGUOUS, means, provider, fit, candidates=candidates)
    return WorkLink(LinkStatus.LINKED, means, provider, fit, work)


def title_likeness(one: str, other: str) -> float | None:
    """0 to 1; None where one of them is empty. A subtitle that one of them leaves out costs
    little."""
    first, second = words_of(one), words_of(other)
    if not first or not second:
        return None
    shorter, longer = sorted((first, second), key=len)
    if len(shorter) >= 4 and longer[: len(shorter)] == shorter:
        return max(0.9, len(shorter) / len(longer))
    alike = SequenceMatcher(
        None, " ".join(first)[:_SIGNS], " ".join(second)[:_SIGNS], autojunk=False
    ).ratio()
    return alike if _numbers(first) == _numbers(second) else alike * _OTHER_NUMBERS


def _numbers(words: Sequence[str]) -> set[str]:
    """Part 2 is another work than part 3, however alike the rest is."""
    return {word for word in words if word[0].isdigit()}


def _authors(reference: Reference, work: CitedWork) -> float | None:
    """The part of the reference's authors, five at most, that the work has."""
    if not reference.authors or not work.authors:
        return None
    names = {word for person in work.authors for word in words_of(str(person))}
    asked = [words_of(person.family) for person in reference.authors[:5]]
    asked = [words for words in asked if words]
    if not asked:
        return None
    return sum(words[-1] in names for words in asked) / len(asked)


def _years(one: int | None, other: int | None) -> float | None:
    """A preprint is often a year older than what came of it."""
    if one is None or other is None:
        return None
    return {0: 1.0, 1: 0.7, 2: 0.3}.get(abs(one - other), 0.0)


def _container(one: str, other: str) -> float | None:
    """Abbreviations (Commun. ACM) count by the beginnings of their words."""
    first, second = words_of(one), words_of(other)
    if not first or not second:
        return None
    return max(_begins(first, second), _begins(second, first))


def _begins(short: Sequence[str], long: Sequence[str]) -> float:
    return sum(any(word.startswith(each) for word in long) for each in short) / len(short)
