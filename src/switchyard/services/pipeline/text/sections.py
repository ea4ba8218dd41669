"""Cut a long text to the length that a model accepts, without losing whole parts of it.

Cutting at the end would drop the conclusions. Instead every section keeps its beginning: short
sections are kept whole, and the room that they do not use goes to the long ones."""

from __future__ import annotations

import re
from collections.abc import Sequence

from switchyard.services.pipeline.text.plain_text import paragraphs, sentences, shorten

GAP = "[…]"
"""Mark for text that was left out."""

_HEADING = re.compile(r"^#{1,6} ")
_MIN_BEGINNING = 200
"""Shortest beginning of a section that is of use, in characters."""


def sections_of(pages: Sequence[str]) -> list[str]:
    """Return the parts of a document: under its Markdown headings where it has any, else its
    pages."""
    blocks = [block for page in pages for block in paragraphs(page)]
    if sum(bool(_HEADING.match(block)) for block in blocks) < 2:
        return ["\n\n".join(paragraphs(page)) for page in pages if page.strip()]
    sections: list[list[str]] = [[]]
    for block in blocks:
        if _HEADING.match(block) and sections[-1]:
            sections.append([])
        sections[-1].append(block)
    return ["\n\n".join(section) for section in sections if section]


def fit(sections: Sequence[str], budget: int) -> tuple[str, bool]:
    """Return the sections in at most `budget` characters, and whether anything was left out."""
    full_text = "\n\n".join(sections)
    if len(full_text) <= budget:
        return full_text, False
    chosen = _spread(sections, max(budget // _MIN_BEGINNING, 1))
    overhead = len(GAP) + 4
    share = _fair_share([len(section) + 2 for section in chosen], budget - overhead)
    parts = [_first_sentences(section, share - overhead) for section in chosen]
    text = "\n\n".join(part for part in parts if part)
    if len(chosen) < len(sections):
        text += f"\n\n{GAP}"
    return text[:budget], True


def _spread(sections: Sequence[str], max_sections: int) -> list[str]:
    """Return at most `max_sections` sections, evenly spread, the first and the last among them."""
    if len(sections) <= max_sections:
        return list(sections)
    if max_sections == 1:
        return [sections[0]]
    last = len(sections) - 1
    return [sections[round(step * last / (max_sections - 1))] for step in range(max_sections)]


def _fair_share(sizes: Sequence[int], budget: int) -> int:
    """Return the largest size to which larger sections may be cut so that all fit the budget."""
    budget_left, share = budget, 0
    ascending = sorted(sizes)
    for index, size in enumerate(ascending):
        share = budget_left // (len(ascending) - index)
        if size > share:
            return share
        budget_left -= size
    return max(share, ascending[-1]) if ascending else budget


def _first_sentences(section: str, limit: int) -> str:
    """Return the first sentences of a section, at most `limit` characters, and GAP."""
    if len(section) <= limit:
        return section
    beginning = ""
    for paragraph in section.split("\n\n"):
        separator = "\n\n" if beginning else ""
        for sentence in sentences(paragraph):
            if len(beginning) + len(separator) + len(sentence) > limit:
                return (
                    f"{beginning} {GAP}"
                    if beginning
                    else f"{shorten(sentence, max(limit, 1))} {GAP}"
                )
            beginning += separator + sentence
            separator = " "
    return beginning
