"""States of documents, and what they are classified as."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from switchyard.broker import patterns

# While the pipeline goes on, a document's state is that of a stage.
COMPLETED = "completed"
NEEDS_OCR = "needs_ocr"
"""It is made of images, and waits for a worker that reads them."""
FAILED = "failed"
FINISHED_STATES = frozenset({COMPLETED})
"""States of a document that its pipeline leaves alone."""


def checked_class(value: object) -> object:
    """Return the value if it can be a class in a filter; a value that is no text is for others to
    refuse.

    Raises ValueError, which says how one is written.
    """
    if isinstance(value, str) and not re.match(patterns.CLASS.replace("$", r"\Z"), value):
        raise ValueError(
            f"{value[:100]!r} is no class: write kind:label, such as privacy:restricted"
        )
    return value


@dataclass(frozen=True, slots=True)
class DocumentClass:
    """One class of one document."""

    kind: str
    label: str
    score: float
    """By rules the points of its keywords, by meaning the similarity."""
    why: Mapping[str, Any] = field(default_factory=dict)
    """`by`, and by rules `keywords` with how often each was found and the `points` of all labels,
    by meaning the `similarities` of the most similar ones."""

    @property
    def name(self) -> str:
        """As a filter has it: `privacy:restricted`."""
        return f"{self.kind}:{self.label}"
