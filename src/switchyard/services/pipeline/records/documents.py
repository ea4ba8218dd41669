"""States of documents, and their classes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from switchyard.broker import patterns

# While a document is processed, its state is that of the stage (`Stage.state`, such as "storing").
# These are the other states.
COMPLETED = "completed"
NEEDS_OCR = "needs_ocr"
"""The document consists of images, and waits for a worker that recognises their text."""
FAILED = "failed"
FINISHED_STATES = frozenset({COMPLETED})
"""States in which a document's pipeline has ended well; FAILED is not among them."""


def checked_class(value: object) -> object:
    """Return the value if it can be a class in a filter. A value that is no string is also
    returned: refusing it is the caller's part. Raises ValueError, which says how a class is
    written."""
    # `$` also matches before a line break at the end.
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
    """Method `rules`: the points of its keywords; method `meaning`: the similarity."""
    why: Mapping[str, Any] = field(default_factory=dict)
    """Always `by` (the method). Method `rules`: `keywords` (how often each was found) and `points`
    of all labels. Method `meaning`: `similarities` of the most similar labels."""

    @property
    def name(self) -> str:
        """The class as it is written in a filter: `privacy:restricted`."""
        return f"{self.kind}:{self.label}"


@dataclass(frozen=True, slots=True)
class Document:
    """A document (an item of the knowledge graph) and how far its pipeline has come."""

    id: str
    content_hash: str
    source: str | None
    filename: str | None
    title: str | None
    media_type: str | None
    size_bytes: int | None
    pipeline: str | None
    """Id of the first job of its pipeline."""
    state: str
    current_stage: str | None
    completed_stages: tuple[str, ...]
    created_at: float
    updated_at: float
