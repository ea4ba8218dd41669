"""Read arXiv's answers: identifiers, entries, and the Atom feed that contains them.

The forms are those of https://info.arxiv.org/help/arxiv_identifier.html and of the API's manual,
https://info.arxiv.org/help/api/user-manual.html.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from xml.etree import ElementTree as ET

from pydantic import BaseModel, ConfigDict, Field

from switchyard.broker.message import Moment
from switchyard.services.common.files.charsets import Charset
from switchyard.services.pipeline.sources.safe_xml import xml_tree
from switchyard.services.pipeline.sources.source_errors import InvalidSourceResponse, SourceRefused

_log = logging.getLogger(__name__)

_ATOM = "{http://www.w3.org/2005/Atom}"
_ARXIV = "{http://arxiv.org/schemas/atom}"
_SEARCH = "{http://a9.com/-/spec/opensearch/1.1/}"

_PREFIX = re.compile(
    r"""^(?: (?:https?://)? (?:[a-z]+\.)? arxiv\.org/(?:abs|pdf|html|format|src|e-print)/
           | (?:https?://(?:dx\.)?doi\.org/|doi:)? 10\.48550/arxiv\.
           | arxiv: \s* )""",
    re.IGNORECASE | re.VERBOSE,
)
_ID = re.compile(
    r"""(?P<base> \d{4}\.\d{4,5} | (?P<archive>[a-z][a-z-]*) (?:\.[A-Za-z]{2})? /(?P<number>\d{7}))
        (?:v(?P<version>[1-9]\d{0,3}))?""",
    re.ASCII | re.VERBOSE,
)
_WITHDRAWN = re.compile(r"\b(?:been|is|was|are) withdrawn\b|^withdrawn\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ArxivId:
    """An id of arXiv. `base` names a paper with all its versions: `1605.08386`, `math/0309136`."""

    base: str
    version: int | None = None
    """None for the newest version."""

    def __str__(self) -> str:
        return self.base if self.version is None else f"{self.base}v{self.version}"

    @property
    def source(self) -> str:
        """The source of the paper's document."""
        return f"arxiv:{self.base}"

    @classmethod
    def parse(cls, text: str) -> ArxivId:
        """Read `1605.08386v2`, `hep-th/9901001`, `math.GT/0309136`, `arXiv:1605.08386`, the
        address of an abstract or a PDF, a DOI of arXiv. Raises ValueError."""
        id_text = _PREFIX.sub("", text.strip()).split("?")[0].split("#")[0].removesuffix("/")
        match = _ID.fullmatch(id_text.removesuffix(".pdf"))
        if match is None:
            raise ValueError(
                f"{text[:100]!r} is no arXiv id: they look like 1605.08386, 1605.08386v2 or "
                "math/0309136"
            )
        is_old_form = match["number"] is not None
        # Without the subject class, as ids are unique without it.
        base = f"{match['archive']}/{match['number']}" if is_old_form else match["base"]
        return cls(base, int(match["version"]) if match["version"] else None)


class Entry(BaseModel):
    """One paper in one version, as arXiv describes it. It fits into a job's payload."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1, max_length=64)
    """The paper's id without the version, normalised."""
    version: int = Field(ge=1)
    title: str = Field(min_length=1)
    abstract: str = ""
    authors: tuple[str, ...] = ()
    primary_category: str | None = None
    categories: tuple[str, ...] = ()
    published: Moment
    """The time at which the first version was submitted."""
    updated: Moment
    """The time at which this version was submitted."""
    comment: str | None = None
    journal_ref: str | None = None
    doi: str | None = None
    abs_url: str | None = None
    pdf_url: str | None = None

    @property
    def arxiv_id(self) -> ArxivId:
        return ArxivId(self.id, self.version)

    @property
    def withdrawn(self) -> bool:
        """Whether the authors have withdrawn the paper: there is no PDF of this version."""
        return bool(
            _WITHDRAWN.search(self.comment or "")
            or _WITHDRAWN.search(self.abstract[:200] if len(self.abstract) < 400 else "")
        )


@dataclass(frozen=True, slots=True)
class Feed:
    """One answer of the API."""

    entries: tuple[Entry, ...]
    count: int
    """Number of entries in the answer, with those that could not be read."""
    start: int
    total: int
    """Number of all results of the query, as arXiv gives it."""


def parse_feed(data: bytes, charset: Charset | None = None) -> Feed:
    """Read an answer of the API.

    Raises InvalidSourceResponse when it is no Atom feed, and SourceRefused when it contains arXiv's
    message that the request was wrong.
    """
    root = xml_tree(data, "arXiv", charset)
    if root.tag != f"{_ATOM}feed":
        raise InvalidSourceResponse("arXiv's answer is XML, but no Atom feed")
    elements = root.findall(f"{_ATOM}entry")
    for each in elements:
        if "/api/errors" in _text(each, f"{_ATOM}id"):
            reason = _text(each, f"{_ATOM}summary") or _text(each, f"{_ATOM}title")
            raise SourceRefused(f"arXiv refuses the request: {reason[:500]}")
    return Feed(
        entries=tuple(_entries(elements)),
        count=len(elements),
        start=_number(root, "startIndex"),
        total=_number(root, "totalResults"),
    )


def _entries(elements: list[ET.Element]) -> Iterator[Entry]:
    for each in elements:
        try:
            yield _entry(each)
        except ValueError as error:
            # Some records of arXiv are damaged, and have little more than an id.
            _log.warning("arXiv entry %r can't be read: %s", _text(each, f"{_ATOM}id"), error)


def _entry(element: ET.Element) -> Entry:
    url = _text(element, f"{_ATOM}id")
    arxiv_id = ArxivId.parse(url)
    primary_category = element.find(f"{_ARXIV}primary_category")
    links = element.findall(f"{_ATOM}link")
    pdf = next((link.get("href") for link in links if link.get("title") == "pdf"), None)
    names = (_text(author, f"{_ATOM}name") for author in element.findall(f"{_ATOM}author"))
    terms = (each.get("term") for each in element.findall(f"{_ATOM}category"))
    published = _time(_text(element, f"{_ATOM}published"))
    updated = _text(element, f"{_ATOM}updated")
    return Entry(
        id=arxiv_id.base,
        version=arxiv_id.version or 1,
        title=_text(element, f"{_ATOM}title"),
        abstract=_text(element, f"{_ATOM}summary"),
        authors=tuple(name for name in names if name),
        primary_category=primary_category.get("term") if primary_category is not None else None,
        categories=tuple(term for term in terms if term),
        published=published,
        updated=_time(updated) if updated else published,
        comment=_text(element, f"{_ARXIV}comment") or None,
        journal_ref=_text(element, f"{_ARXIV}journal_ref") or None,
        doi=_text(element, f"{_ARXIV}doi") or None,
        abs_url=url or None,
        pdf_url=pdf,
    )


def _text(element: ET.Element, tag: str) -> str:
    """Return the text of a child in one line: arXiv breaks long titles and abstracts anywhere."""
    return " ".join((element.findtext(tag) or "").split())


def _time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _number(root: ET.Element, name: str) -> int:
    text = _text(root, f"{_SEARCH}{name}")
    if not (text.isascii() and text.isdigit()):
        raise InvalidSourceResponse(f"arXiv's answer does not say its {name}")
    return int(text[:12])
