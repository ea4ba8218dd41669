"""What a reference says, field by field."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class Person:
    """One author or editor; an organisation has its whole name in `family`."""

    family: str
    given: str = ""

    def __str__(self) -> str:
        return f"{self.family}, {self.given}" if self.given else self.family


@dataclass(frozen=True)
class Reference:
    """A reference cut into fields; what it does not say is empty.

    `confidence` is the estimate (0 to 1) of the `engine` that cut it, that its cuts are right.
    """

    text: str
    authors: Sequence[Person] = ()
    more_authors: bool = False  # "et al." stands for them
    editors: str = ""
    title: str = ""
    container: str = ""  # the journal, proceedings, book or site that it appeared in
    year: int | None = None
    volume: str = ""
    issue: str = ""
    pages: str = ""  # "12–34"; one page or an article's number as it stands
    publisher: str = ""  # a thesis's school and a report's institution, too
    place: str = ""
    edition: str = ""
    doi: str = ""  # in lower case, without an address before it
    arxiv_id: str = ""
    isbn: str = ""  # digits (and a last X) only
    url: str = ""
    language: str = ""  # ISO 639-1, of the title; empty where it can't be told
    confidence: float = 0.0
    engine: str = ""
    also: Sequence[str] = field(
        default=()
    )  # what stands there besides: notes, dates of access, numbers

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Self:
        """What `as_json` has told; what else stands there is left out."""
        known = {name: told[name] for name in cls.__dataclass_fields__ if name in told}
        if "authors" in known:
            known["authors"] = tuple(Person(**each) for each in known["authors"])
        return cls(**known)

    def as_json(self) -> dict[str, object]:
        """The text, and the fields that are not empty, as plain values."""
        told = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if value not in ("", (), None, False)
        }
        return {"text": self.text, **told}
