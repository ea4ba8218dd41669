"""A small HTTP server that answers like arXiv's API, from papers that a test makes, and can
misbehave.

It knows ids, categories (`cat:`), words of the title, ranges of dates, the orders by date, and
pages; a malformed id is refused as arXiv does it. `server.next(throttled(7), cut())` is what the
next two requests get. It keeps every request, with the time at which it came.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape, quoteattr

ATOM = "application/atom+xml; charset=utf-8"
_FIRST = datetime(2024, 3, 1, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Paper:
    """A paper that the server has, in its newest version."""

    id: str
    title: str = "On the tides of a small harbour"
    abstract: str = "Tides in a small harbour are measured. They follow the moon."
    version: int = 1
    published: datetime = _FIRST
    updated: datetime | None = None
    authors: tuple[str, ...] = ("Ada Tide", "Müller, J.")
    categories: tuple[str, ...] = ("physics.ao-ph",)
    comment: str | None = None
    journal_ref: str | None = None
    doi: str | None = None
    pdf_url: str | None = None
    """Else the server's own, below /pdf/."""
    damaged: bool = False
    """Comes as little more than an id, as some of arXiv's records do."""


@dataclass(frozen=True)
class Request:
    """What a client asked for."""

    path: str
    parameters: dict[str, str]
    at: float = field(compare=False)
    """Seconds, on the monotonic clock."""


class Exchange(BaseHTTPRequestHandler):
    """One request and what is done about it; behaviours are functions of this."""

    protocol_version = "HTTP/1.1"
    server: _Http

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        parameters = {name: values[0] for name, values in parse_qs(parts.query).items()}
        request = Request(parts.path, parameters, time.monotonic())
        self.server.owner.handle(self, request)

    def send(
        self,
        status: int,
        body: bytes,
        *,
        content_type: str = ATOM,
        headers: dict[str, str] | None = None,
        claimed_length: int | None = None,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(claimed_length or len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        if claimed_length is not None:
            self.close_connection = True

    def reset(self) -> None:
        """Cut the connection so that the client sees a reset, not an orderly end."""
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RD)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
        """Say nothing: tests read `requests`."""


Behaviour = Callable[[Exchange, Request], None]


def answer_well(exchange: Exchange, request: Request) -> None:
    """As arXiv would."""
    exchange.server.owner.answer(exchange, request)


def throttled(seconds: int | None, status: int = 429) -> Behaviour:
    """Too many requests; with Retry-After, unless None."""
    headers = {} if seconds is None else {"Retry-After": str(seconds)}
    return lambda exchange, _: exchange.send(
        status, b"Rate exceeded.", content_type="text/plain", headers=headers
    )


def fails(status: int) -> Behaviour:
    """An error of the server itself."""
    return lambda exchange, _: exchange.send(status, b"<h1>Oops</h1>", content_type="text/html")


def answers(status: int, body: bytes) -> Behaviour:
    """Any status with a feed, or what passes for one."""
    return lambda exchange, _: exchange.send(status, body)


def says(body: bytes, content_type: str = ATOM) -> Behaviour:
    """200 with any body."""
    return lambda exchange, _: exchange.send(200, body, content_type=content_type)


def cut() -> Behaviour:
    """The connection is reset before a word is said."""
    return lambda exchange, _: exchange.reset()


def cut_in_the_middle() -> Behaviour:
    """The connection ends within the body."""
    return lambda exchange, _: exchange.send(200, b"<?xml version='1.0'?><feed", claimed_length=999)


def empty_page() -> Behaviour:
    """No entry, although there are more, as arXiv does it now and then."""
    return lambda exchange, _: exchange.send(200, feed([], total=1_000_000, start=0))


def slow(seconds: float) -> Behaviour:
    """The right answer, late; ends early when the server stops."""

    def behave(exchange: Exchange, request: Request) -> None:
        exchange.server.owner.stopped.wait(seconds)
        answer_well(exchange, request)

    return behave


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    owner: ArxivServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is what some tests are about."""


class ArxivServer:
    """Use as a context manager; `url` is what JOBS_ARXIV_BASE_URL takes."""

    def __init__(self, papers: Sequence[Paper] = ()) -> None:
        self.papers = list(papers)
        self.pdfs: dict[str, bytes] = {}
        """By id with version."""
        self.requests: list[Request] = []
        self.most_at_once = 0
        """Requests that were under way at the same time."""
        self.deepest: int | None = None
        """Pages beyond this offset fail, as arXiv's do."""
        self.stopped = threading.Event()
        self._under_way = 0
        self._next: deque[Behaviour] = deque()
        self._always: Behaviour | None = None
        self._lock = threading.Lock()
        self._http = _Http(("127.0.0.1", 0), Exchange)
        self._http.owner = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def url(self) -> str:
        return f"{self.origin}/api/query"

    def next(self, *behaviours: Behaviour) -> None:
        """What the next requests get, in order; those after them are answered well."""
        with self._lock:
            self._next.extend(behaviours)

    def always(self, behaviour: Behaviour | None) -> None:
        """What every request gets from now on; None for good answers again."""
        with self._lock:
            self._always = behaviour

    def replace(self, paper_id: str, **changes: Any) -> None:
        """A paper changes, for example into its next version."""
        self.papers = [
            replace(paper, **changes) if paper.id == paper_id else paper for paper in self.papers
        ]

    def handle(self, exchange: Exchange, request: Request) -> None:
        with self._lock:
            self.requests.append(request)
            self._under_way += 1
            self.most_at_once = max(self.most_at_once, self._under_way)
            behave = self._next.popleft() if self._next else self._always or self.answer
        try:
            behave(exchange, request)
        finally:
            with self._lock:
                self._under_way -= 1

    def answer(self, exchange: Exchange, request: Request) -> None:
        """As arXiv would."""
        if request.path.startswith("/pdf/"):
            pdf = self.pdfs.get(request.path.removeprefix("/pdf/"))
            if pdf is None:
                exchange.send(404, b"no such paper", content_type="text/plain")
            else:
                exchange.send(200, pdf, content_type="application/pdf")
            return
        parameters = request.parameters
        ids = [each for each in parameters.get("id_list", "").split(",") if each]
        wrong = next((each for each in ids if not re.search(r"\d{4}\.\d{4,5}|/\d{7}", each)), None)
        if wrong is not None:
            exchange.send(400, refusal(f"incorrect id format for {wrong}"))
            return
        start = int(parameters.get("start", 0))
        if self.deepest is not None and start >= self.deepest:
            exchange.send(500, b"too deep", content_type="text/plain")
            return
        found = self._by_ids(ids) if ids else self._search(parameters)
        page = found[start : start + int(parameters.get("max_results", 10))]
        exchange.send(200, feed([self.entry(paper) for paper in page], len(found), start))

    def _by_ids(self, ids: Sequence[str]) -> list[Paper]:
        known = {paper.id: paper for paper in self.papers}
        found = []
        for each in ids:
            base, _, version = each.partition("v")
            if base in known:
                paper = known[base]
                found.append(replace(paper, version=int(version)) if version else paper)
        return found

    def _search(self, parameters: dict[str, str]) -> list[Paper]:
        query = parameters.get("search_query", "")
        found = list(self.papers)
        if category := re.search(r"cat:([\w.-]+)", query):
            found = [paper for paper in found if category[1] in paper.categories]
        if word := re.search(r"ti:(\w+)", query):
            found = [paper for paper in found if word[1].lower() in paper.title.lower()]
        for name in ("submittedDate", "lastUpdatedDate"):
            if dates := re.search(rf"{name}:\[(\d{{12}}) TO (\d{{12}})\]", query):
                found = [each for each in found if dates[1] <= _stamp(each, name) <= dates[2]]
        by = parameters.get("sortBy", "relevance")
        if by != "relevance":
            descending = parameters.get("sortOrder", "descending") == "descending"
            found.sort(key=lambda paper: _moment(paper, by), reverse=descending)
        return found

    def entry(self, paper: Paper) -> str:
        """A paper as an element of a feed, in arXiv's order of things."""
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

    def __enter__(self) -> ArxivServer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stopped.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def feed(entries: Sequence[str], total: int, start: int) -> bytes:
    """An answer of the API."""
    text = f"""<?xml version='1.0' encoding='UTF-8'?>
<feed xmlns:opensearch="http://a9.com/-/spec/opensearch/1.1/"
  xmlns:arxiv="http://arxiv.org/schemas/atom" xmlns="http://www.w3.org/2005/Atom">
<id>https://arxiv.org/api/abc</id><title>arXiv Query: ...</title>
<opensearch:itemsPerPage>{len(entries)}</opensearch:itemsPerPage>
<opensearch:totalResults>{total}</opensearch:totalResults>
<opensearch:startIndex>{start}</opensearch:startIndex>
{"".join(entries)}</feed>"""
    return text.encode()


def refusal(said: str) -> bytes:
    """What arXiv answers to a request that is wrong."""
    url = "https://arxiv.org/api/errors#" + said.replace(" ", "_")
    entry = f"<entry><id>{url}</id><title>Error</title><summary>{said}</summary></entry>"
    return feed([entry], total=1, start=0)


def many(count: int, *, first: datetime = _FIRST, apart: timedelta = timedelta(hours=1)) -> list:
    """So many papers, each submitted a while after the one before."""
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


def _moment(paper: Paper, by: str) -> datetime:
    return paper.published if by == "submittedDate" else paper.updated or paper.published


def _stamp(paper: Paper, by: str) -> str:
    return _moment(paper, by).strftime("%Y%m%d%H%M")


def _iso(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
