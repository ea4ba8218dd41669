"""A bibliographic reference, field by field."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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
    """A reference parsed into fields; a field that it does not have is empty.

    `confidence` is how sure the `engine` that parsed it is of the fields, from 0 to 1.
    """

    text: str
    authors: Sequence[Person] = ()
    more_authors: bool = False  # "et al." stands for further authors
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
    notes: Sequence[str] = ()  # all other parts of its text, such as dates of access

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read what `as_json` returned; other fields are ignored."""
        known = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
        if "authors" in known:
            known["authors"] = tuple(Person(**each) for each in known["authors"])
        return cls(**known)

    def as_json(self) -> dict[str, object]:
        """Return the text, and the fields that are not empty, as plain values."""
        filled = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if value not in ("", (), None, False)
        }
        return {"text": self.text, **filled}
