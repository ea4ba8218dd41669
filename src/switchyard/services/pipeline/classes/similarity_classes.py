"""Classify by meaning: by the similarity of a document's passages to descriptions of labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from switchyard.services.pipeline.classes.class_definitions import MeaningKind
from switchyard.services.pipeline.records.documents import DocumentClass

_PASSAGE_DIVISOR = 3
"""One passage in this many counts, the most similar ones: a report speaks of its subject on some of
its pages."""
_MAX_STORED = 5
"""Most labels whose similarity is stored with a class."""
_MIN_SHARE_OF_LEAD = 0.5
"""Another label is given as well if it has at least this share of the best label's lead."""


def similarities(
    passages: Sequence[Sequence[float]],
    descriptions: Sequence[tuple[str, Sequence[float]]],
) -> dict[str, float]:
    """Return the similarity of a document to each label, from the vectors of its passages and of
    the labels' descriptions: cosines, from -1 to 1; 0 for a document without passages."""
    import numpy as np

    if not passages:
        return dict.fromkeys((label for label, _ in descriptions), 0.0)
    cosines = (
        _unit(np.asarray(passages)) @ _unit(np.asarray([vector for _, vector in descriptions])).T
    )
    counted_passages = -(-len(passages) // _PASSAGE_DIVISOR)
    mean_of_best = np.sort(cosines, axis=0)[-counted_passages:].mean(axis=0)
    by_label: dict[str, float] = {}
    for (label, _), similarity in zip(descriptions, mean_of_best, strict=True):
        by_label[label] = max(by_label.get(label, -1.0), round(float(similarity), 4))
    return by_label


def classes_by_similarity(
    name: str, kind: MeaningKind, similarity_of: Mapping[str, float], min_relevance: float
) -> list[DocumentClass]:
    """Return the classes of a document by its similarity to the labels. `min_relevance` is the
    least similarity that the embedder's calibration takes for a match."""
    base = similarity_of.get(kind.otherwise or "", median(similarity_of.values()))
    others = [label for label in similarity_of if label != kind.otherwise]
    ranked = sorted(others, key=lambda label: (-similarity_of[label], label))
    best_lead = similarity_of[ranked[0]] - base
    chosen_labels = [
        label
        for label in ranked[: kind.several]
        if similarity_of[label] >= min_relevance
        and similarity_of[label] - base >= max(kind.at_least, _MIN_SHARE_OF_LEAD * best_lead)
    ]
    if not chosen_labels and kind.otherwise is not None:
        chosen_labels = [kind.otherwise]
    most_similar = sorted(similarity_of, key=lambda label: (-similarity_of[label], label))[
        :_MAX_STORED
    ]
    why = {"by": "meaning", "similarities": {label: similarity_of[label] for label in most_similar}}
    return [
        DocumentClass(name, label, similarity_of.get(label, 0.0), why) for label in chosen_labels
    ]


def _unit(vectors: Any) -> Any:
    import numpy as np

    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths)
