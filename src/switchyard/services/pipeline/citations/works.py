"""Works that references are linked to, and what a link says: the records that others read."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Self

from switchyard.services.pipeline.citations.reference import Person, Reference


@dataclass(frozen=True)
class CitedWork:
    """A work as a catalogue knows it; what the catalogue does not say is empty."""

    id: str
    """`doi:10.1145/359545.359563`, else `arxiv:1706.03762`, else `openalex:W…`, else
    `wikidata:Q…`: the first of these that it has, so it is the same whoever was asked."""
    title: str = ""
    authors: Sequence[Person] = ()
    year: int | None = None
    container: str = ""
    doi: str = ""
    arxiv_id: str = ""
    openalex: str = ""
    wikidata: str = ""

    @classmethod
    def from_fields(cls, **said: Any) -> Self:
        """With the id that its identifiers make. Raises ValueError where it has none."""
        for scheme, name in _SCHEMES:
            if said.get(name):
                return cls(id=f"{scheme}:{said[name]}", **said)
        raise ValueError("a work needs a DOI, an arXiv id, or a catalogue's id")

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Self:
        """Make it from what `as_json` returned."""
        authors = tuple(Person(**each) for each in told.get("authors", ()))
        return cls(**{**told, "authors": authors})

    def as_json(self) -> dict[str, Any]:
        """The fields that are not empty, as plain values."""
        said = {name: value for name, value in asdict(self).items() if value}
        return said | ({"authors": list(said["authors"])} if "authors" in said else {})


_SCHEMES = (
    ("doi", "doi"),
    ("arxiv", "arxiv_id"),
    ("openalex", "openalex"),
    ("wikidata", "wikidata"),
)


class LinkStatus(StrEnum):
    """What became of a reference."""

    LINKED = "linked"
    AMBIGUOUS = "ambiguous"
    """Several works fit about as well: see the candidates."""
    NOT_FOUND = "not_found"


@dataclass(frozen=True)
class Candidate:
    """A work that a reference may mean, and how well it fits: 0 to 1."""

    score: float
    work: CitedWork

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Self:
        """Make it from what `as_json` returned."""
        return cls(told["score"], CitedWork.from_json(told["work"]))

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        return {"score": self.score, "work": self.work.as_json()}


@dataclass(frozen=True)
class WorkLink:
    """A reference's work, where it was found."""

    status: LinkStatus
    by: str = ""
    """How: `doi`, `arxiv` or `search`."""
    provider: str = ""
    """Who said so: `openalex`, `crossref` or `wikidata`."""
    score: float = 0.0
    work: CitedWork | None = None
    """Only where it is linked."""
    candidates: Sequence[Candidate] = ()
    """Only where it is ambiguous, the best first."""

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Self:
        """Make it from what `as_json` returned."""
        work = told.get("work")
        return cls(
            LinkStatus(told["status"]),
            told.get("by", ""),
            told.get("provider", ""),
            told.get("score", 0.0),
            None if work is None else CitedWork.from_json(work),
            tuple(Candidate.from_json(each) for each in told.get("candidates", ())),
        )

    def as_json(self) -> dict[str, Any]:
        """The fields that are not empty, as plain values."""
        told: dict[str, Any] = {"status": self.status.value}
        if self.by:
            told |= {"by": self.by, "provider": self.provider, "score": self.score}
        if self.work is not None:
            told["work"] = self.work.as_json()
        if self.candidates:
            told["candidates"] = [each.as_json() for each in self.candidates]
        return told


def with_work(reference: Reference, work: CitedWork) -> Reference:
    """The reference with the identifiers of its work, where it has none itself."""
    return replace(
        reference,
        doi=reference.doi or work.doi,
        arxiv_id=reference.arxiv_id or work.arxiv_id,
    )
