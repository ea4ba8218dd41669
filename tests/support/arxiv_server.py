"""A small HTTP server that answers like arXiv's API, from papers that a test makes, and can
misbehave.

It searches by id, category (`cat:`), words of the title and ranges of dates, sorts by date, and
returns pages; it refuses a malformed id as arXiv does. `server.next(throttled(7), cut())` sets the
answers to the next two requests. It records every request with its time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from tests.support import site
from tests.support.site import (
    Behaviour,
    Exchange,
    Request,
    Site,
    answer_well,
    cut,
    cut_in_the_middle,
    fails,
    slow,
    throttled,
)

__all__ = ["Behaviour", "answer_well", "cut", "cut_in_the_middle", "fails", "slow", "throttled"]

ATOM = "application/atom+xml; charset=utf-8"
_FIRST_SUBMITTED = datetime(2024, 3, 1, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Paper:
    """A paper that the server has, in its newest version."""

    id: str
    title: str = "On the tides of a small harbour"
    abstract: str = "Tides in a small harbour are measured. They follow the moon."
    version: int = 1
    published: datetime = _FIRST_SUBMITTED
    updated: datetime | None = None
    authors: tuple[str, ...] = ("Ada Tide", "Müller, J.")
    categories: tuple[str, ...] = ("physics.ao-ph",)
    comment: str | None = None
    journal_ref: str | None = None
    doi: str | None = None
    pdf_url: str | None = None
    """Address of the PDF; None: the server's own, below /pdf/."""
    damaged: bool = False
    """Whether the entry holds little more than an id, as some of arXiv's do."""


def says(body: bytes, content_type: str = ATOM) -> Behaviour:
    """Answer 200 with any body."""
    return site.says(body, content_type)


def answers(status: int, body: bytes) -> Behaviour:
    """Answer any status with a feed, or with something else in place of one."""
    return site.says(body, ATOM, status=status)


def empty_page() -> Behaviour:
    """Answer a page without entries, although there are more, as arXiv sometimes does."""
    return lambda exchange, _: exchange.send(
        200, feed([], total=1_000_000, start=0), content_type=ATOM
    )


class ArxivServer(Site):
    """Use as a context manager; `url` is what JOBS_ARXIV_BASE_URL takes."""

    def __init__(self, papers: Sequence[Paper] = ()) -> None:
        super().__init__()
        self.papers = list(papers)
        self.pdfs: dict[str, bytes] = {}
        """PDFs by the paper's id with its version."""
        self.max_start: int | None = None
        """Pages beyond this offset fail, as arXiv's do."""

    @property
    def url(self) -> str:
        return f"{self.origin}/api/query"

    def replace(self, paper_id: str, **changes: Any) -> None:
        """Change a paper, for example into its next version."""
        self.papers = [
            replace(paper, **changes) if paper.id == paper_id else paper for paper in self.papers
        ]

    def answer(self, exchange: Exchange, request: Request) -> None:
        """Answer as arXiv would."""
        if request.path.startswith("/pdf/"):
            pdf = self.pdfs.get(request.path.removeprefix("/pdf/"))
            if pdf is None:
                exchange.send(404, b"no such paper", content_type="text/plain")
            else:
                exchange.send(200, pdf, content_type="application/pdf")
            return
        parameters = request.parameters
        ids = [each for each in parameters.get("id_list", "").split(",") if each]
        bad_id = next((each for each in ids if not re.search(r"\d{4}\.\d{4,5}|/\d{7}", each)), None)
        if bad_id is not None:
            exchange.send(400, refusal(f"incorrect id format for {bad_id}"), content_type=ATOM)
            return
        start = int(parameters.get("start", 0))
        if self.max_start is not None and start >= self.max_start:
            exchange.send(500, b"too deep", content_type="text/plain")
            return
        papers = self._by_ids(ids) if ids else self._search(parameters)
        page = papers[start : start + int(parameters.get("max_results", 10))]
        entries = [self.entry(paper) for paper in page]
        exchange.send(200, feed(entries, len(papers), start), content_type=ATOM)

    def _by_ids(self, ids: Sequence[str]) -> list[Paper]:
        papers_by_id = {paper.id: paper for paper in self.papers}
        chosen = []
        for each in ids:
            base, _, version = each.partition("v")
            if base in papers_by_id:
                paper = papers_by_id[base]
                chosen.append(replace(paper, version=int(version)) if version else paper)
        return chosen

    def _search(self, parameters: dict[str, str]) -> list[Paper]:
        query = parameters.get("search_query", "")
        chosen_papers = list(self.papers)
        if category := re.search(r"cat:([\w.-]+)", query):
            chosen_papers = [paper for paper in chosen_papers if category[1] in paper.categories]
        if word := re.search(r"ti:(\w+)", query):
            chosen_papers = [
                paper for paper in chosen_papers if word[1].lower() in paper.title.lower()
            ]
        for name in ("submittedDate", "lastUpdatedDate"):
            if dates := re.search(rf"{name}:\[(\d{{12}}) TO (\d{{12}})\]", query):
                chosen_papers = [
                    each for each in chosen_papers if dates[1] <= _stamp(each, name) <= dates[2]
                ]
        sort_field = parameters.get("sortBy", "relevance")
        if sort_field != "relevance":
            descending = parameters.get("sortOrder", "descending") == "descending"
            chosen_papers.sort(key=lambda paper: _moment(paper, sort_field), reverse=descending)
        return chosen_papers

    def entry(self, paper: Paper) -> str:
        """Write a paper as an entry of a feed, its fields in arXiv's order."""
        name = f"{paper.id}v{paper.version}"
        if paper.damaged:
            return f"<entry><id>http://arxiv.org/abs/{name}</id></entry>"
        pdf = paper.pdf_url or f"{self.origin}/pdf/{name}"
        lines = [
            f"<id>http://arxiv.org/abs/{name}</id>",
            f"<title>{escape(paper.title)}</title>",
            f"<updated>{_iso(paper.updated or paper.published)}</updated>",
            f'<link href="https://arxiv.org/abs/{name}" rel="alternate" type="text/html"/>',
            f'<link href={quoteattr(pdf)} rel="related" type="application/pdf" title="pdf"/>',
            f"<summary>{escape(paper.abstract)}</summary>",
            *(f"<category term={quoteattr(term)}/>" for term in paper.categories),
            f"<published>{_iso(paper.published)}</published>",
            f"<arxiv:comment>{escape(paper.comment)}</arxiv:comment>" if paper.comment else "",
            f"<arxiv:primary_category term={quoteattr(paper.categories[0])}/>",
            _optional("arxiv:journal_ref", paper.journal_ref),
            *(f"<author><name>{escape(author)}</name></author>" for author in paper.authors),
            _optional("arxiv:doi", paper.doi),
        ]
        return "<entry>" + "\n".join(line for line in lines if line) + "</entry>"


def feed(entries: Sequence[str], total: int, start: int) -> bytes:
    """Return an answer of the API."""
    text = f"""<?xml version='1.0' encoding='UTF-8'?>
<feed xmlns:opensearch="http://a9.com/-/spec/opensearch/1.1/"
  xmlns:arxiv="http://arxiv.org/schemas/atom" xmlns="http://www.w3.org/2005/Atom">
<id>https://arxiv.org/api/abc</id><title>arXiv Query: ...</title>
<opensearch:itemsPerPage>{len(entries)}</opensearch:itemsPerPage>
<opensearch:totalResults>{total}</opensearch:totalResults>
<opensearch:startIndex>{start}</opensearch:startIndex>
{"".join(entries)}</feed>"""
    return text.encode()


def refusal(message: str) -> bytes:
    """Return arXiv's answer to an invalid request."""
    url = "https://arxiv.org/api/errors#" + message.replace(" ", "_")
    entry = f"<entry><id>{url}</id><title>Error</title><summary>{message}</summary></entry>"
    return feed([entry], total=1, start=0)


def make_papers(
    count: int, *, first: datetime = _FIRST_SUBMITTED, apart: timedelta = timedelta(hours=1)
) -> list:
    """Return that many papers, each submitted a while after the one before."""
    return [
        Paper(
            f"2403.{number:05}",
            title=f"Paper number {number}",
            abstract=f"This is what paper number {number} is about: tides and harbours.",
            published=first + number * apart,
        )
        for number in range(count)
    ]


def _optional(tag: str, text: str | None) -> str:
    return f"<{tag}>{escape(text)}</{tag}>" if text else ""


def _moment(paper: Paper, sort_field: str) -> datetime:
    return paper.published if sort_field == "submittedDate" else paper.updated or paper.published


def _stamp(paper: Paper, sort_field: str) -> str:
    return _moment(paper, sort_field).strftime("%Y%m%d%H%M")


def _iso(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
