"""How well references are cut, field by field, on styles and names that no model was trained on."""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.citations.faults import with_faults
from benchmarks.citations.labelling import labelled
from benchmarks.citations.works import Works
from benchmarks.citations.writing import Writer, styles
from switchyard.services.pipeline.citations.reference import Reference
from switchyard.services.pipeline.citations.reference_assembly import assemble_reference
from switchyard.services.pipeline.citations.tokens import clean_reference

FIELDS = (
    "authors",
    "title",
    "container",
    "year",
    "volume",
    "issue",
    "pages",
    "publisher",
    "doi",
    "arxiv_id",
    "isbn",
    "url",
)


class Parser(Protocol):
    def parse(self, text: str) -> Reference: ...


@dataclass
class Score:
    """Fields that were right, wrong or too many, and missed."""

    right: int = 0
    found: int = 0
    expected: int = 0

    @property
    def precision(self) -> float:
        return self.right / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        return self.right / self.expected if self.expected else 0.0

    @property
    def f1(self) -> float:
        return 2 * self.right / (self.found + self.expected) if self.found + self.expected else 0.0


@dataclass
class Accuracy:
    """Scores by style and by field, and over all (micro)."""

    total: Score = field(default_factory=Score)
    by_style: defaultdict[str, Score] = field(default_factory=lambda: defaultdict(Score))
    by_field: defaultdict[str, Score] = field(default_factory=lambda: defaultdict(Score))
    misses: Counter[str] = field(default_factory=Counter)


def values(reference: Reference) -> Mapping[str, str]:
    """A reference's fields, so that only what matters is compared: no case, no signs, authors by family name and first initial."""
    plain = {
        name: _plain(str(getattr(reference, name) or "")) for name in FIELDS if name != "authors"
    }
    plain["authors"] = "|".join(
        _plain(person.family) + "," + _plain(person.given)[:1] for person in reference.authors
    )
    return {name: value for name, value in plain.items() if value}


def compared(report: Accuracy, style: str, found: Reference, expected: Reference) -> None:
    """Counts one reference."""
    got, want = values(found), values(expected)
    for name in FIELDS:
        for score in (report.total, report.by_style[style], report.by_field[name]):
            score.found += name in got
            score.expected += name in want
            score.right += name in got and got[name] == want.get(name)
        if got.get(name) != want.get(name):
            report.misses[
                f"{name}: {want.get(name)!r} as {got.get(name)!r} in {expected.text}"
            ] += 1


def evaluated(parser: Parser, *, per_style: int = 150, seed: int = 7) -> Accuracy:
    """Measured on the held-out styles, with journals, publishers and places of their own, half of the references with a PDF's faults."""
    rng = random.Random(seed)
    works, writer, report = Works(seed, held_out=True), Writer(rng), Accuracy()
    for style in styles()[1]:
        for _ in range(per_style):
            text, labels = with_faults(writer.write(works.next(), style), rng)
            compared(report, style.title, parser.parse(text), truth(text, labels))
    return report


def truth(text: str, labels: Sequence[str]) -> Reference:
    """The reference as its labels have it."""
    tokens, of_tokens = labelled(text, labels)
    return assemble_reference(
        clean_reference(text), tokens, of_tokens, confidence=1.0, engine="truth"
    )


def printed(report: Accuracy) -> str:
    """The report as a table."""
    lines = [
        f"{'':22} precision  recall      F1",
        *_rows(report.by_style.items()),
        "",
        *_rows(report.by_field.items()),
        "",
        *_rows([("all fields (micro)", report.total)]),
    ]
    return "\n".join(lines)


def _rows(scores: Iterable[tuple[str, Score]]) -> list[str]:
    return [
        f"{name:22} {score.precision:9.3f} {score.recall:7.3f} {score.f1:7.3f}"
        for name, score in scores
        if score.expected
    ]


def _plain(text: str) -> str:
    return re.sub(r"[\W_]+", "", text).casefold()
