"""What every page shares: its frame, its errors, its headers, and how it stays live.

A view's function reads, and returns a `DashboardPage`: the name of a template and what it shows.
Asked by an EventSource instead of a person, the same address streams the page's blocks whose names
begin with `live_`, each again when it has changed.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Hashable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from secrets import token_hex
from typing import Any
from urllib.parse import quote, unquote

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, RedirectResponse, Response

from switchyard.api.dashboard import formats
from switchyard.api.dashboard.charts import Chart
from switchyard.api.dashboard.live import Feeds
from switchyard.api.dashboard.sessions import PATH, SessionGuard, sessions_of
from switchyard.api.http.errors import problem_of
from switchyard.api.http.event_stream import MEDIA_TYPE, EventStream
from switchyard.api.http.problems import Problem
from switchyard.api.http.routing import GuardedRoute, Routes
from switchyard.api.middleware.access import ANYBODY, StreamSlot, may
from switchyard.api.state import state_of
from switchyard.broker.errors import BrokerError, BrokerUnavailable
from switchyard.services.common.errors import SwitchyardError
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.engine.records.errors import (
    LedgerError,
    LedgerFull,
    LedgerLocked,
    LedgerReadOnly,
)

LIVE = "live_"
"""Prefix of the names of those blocks of a template that are sent again when they change."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    # With `no-referrer`, browsers would send `Origin: null` with forms, which is refused.
    "Referrer-Policy": "same-origin",
    "Vary": "Accept, Cookie",
}
NOTICE = "switchyard_notice"
"""Cookie with the notice of what the last form has done, which is shown once."""
MAX_NOTICE = 500
PRESETS = (1, 5, 20, 100)
"""Sizes of a first batch that forms offer before all letters or jobs are sent."""
MAX_PAGE_AGE = 60.0
"""Seconds after which a page is read again even if its head is unchanged, where that does not
cover all that the page shows; and rendered again even if it shows the same data, as some texts
depend on the time as well."""
READ_AT_ONCE = 6
"""Pages that are read at once in a process; more wait. They would take all its connections to the
ledger, and whoever publishes jobs meanwhile would be told that it is away."""
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True, slots=True)
class DashboardView:
    """An entry of the navigation."""

    name: str
    title: str
    path: str
    scope: Scope = Scope.READ
    is_shown: Callable[[Request], bool] = field(default=lambda _: True)
    """Whether the menu has an entry for it: not for a view whose part of the system is not
    configured (such as LLM servers), or that is reached from other pages only."""


@dataclass(frozen=True, slots=True)
class PageHead:
    """A value that is cheap to read, and changes when an expensive page has to be read again. Ages
    and durations, which change with time alone, are kept current by the page's script."""

    read: Callable[[], Awaitable[Hashable]]
    value: Hashable
    """The value before the page was read."""
    covers_all: bool = False
    """Whether the page needs no reading before the value has changed."""


class DashboardPage(Response):
    """A template and its values; rendered when the route sends it."""

    def __init__(
        self,
        template: str,
        context: Mapping[str, Any],
        *,
        title: str = "",
        status: int = 200,
        head: PageHead | None = None,
    ) -> None:
        """Without a `head`, a page that is open in a browser is read again every few seconds."""
        super().__init__(status_code=status)
        self.head = head
        self.template = template
        self.context = context
        self.title = title


class Macros:
    """The macros of all templates, compiled when the first page is rendered: an API whose dashboard
    nobody opens saves 4 MB."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment.get_template("macros.html").module, name)


class Renderer:
    """Renders pages."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=PackageLoader("switchyard.api.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=formats.shown,
            auto_reload=False,  # each use of a template would ask the disk whether it has changed
        )
        self._environment.filters.update(formats.FILTERS)
        self.assets = Assets()
        self._environment.globals.update(asset=self.assets.address, Chart=Chart)
        self._environment.globals["ui"] = Macros(self._environment)
        self._loaded: set[str] = set()

    async def load(self, page: DashboardPage) -> None:
        """Compile the page's template and what it uses, the first time, in a thread: that takes
        tenths of a second."""
        if page.template not in self._loaded:
            await asyncio.to_thread(self._compile, page.template)
            self._loaded.add(page.template)

    def _compile(self, template: str) -> None:
        environment = self._environment
        parts = environment.list_templates(filter_func=lambda name: name.endswith("_parts.html"))
        for name in ("layout.html", *parts, template):
            environment.get_template(name)
        _ = environment.get_template("macros.html").module

    def html(self, page: DashboardPage, frame: dict[str, Any]) -> str:
        """Render the whole page."""
        return self._environment.get_template(page.template).render(frame | dict(page.context))

    def regions(self, page: DashboardPage, frame: dict[str, Any]) -> dict[str, str]:
        """Render only the live blocks of the page; return them by name."""
        template = self._environment.get_template(page.template)
        context = template.new_context(frame | dict(page.context))
        return {
            name: "".join(block(context))
            for name, block in template.blocks.items()
            if name.startswith(LIVE)
        }


class Assets:
    """The static files of the dashboard, each under an address that changes with its content."""

    TYPES: Mapping[str, str] = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

    def __init__(self) -> None:
        folder = files("switchyard.api.dashboard") / "static"
        self._files = {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}

    def address(self, name: str) -> str:
        """Return the address of a file."""
        return f"{PATH}/static/{name}?v={hashlib.sha256(self._files[name]).hexdigest()[:12]}"

    def response(self, name: str) -> Response:
        """Return a file, which browsers may keep for ever. Raises Problem (404)."""
        if name not in self._files:
            raise Problem("not-found", "there is no such file")
        return Response(
            self._files[name],
            media_type=self.TYPES[name.rpartition(".")[2]],
            headers={"Cache-Control": "public, max-age=31536000, immutable"},
        )


@dataclass(slots=True)
class WriteCount:
    """Counts the transactions in which this process has written to the ledger."""

    number: int = 0

    def observe(self, kind: str, seconds: float, succeeded: bool) -> None:
        """Count a transaction; `Ledger.observe` calls it."""
        self.number += kind == "write" and succeeded


@dataclass(frozen=True, slots=True)
class Dashboard:
    """What all pages share in a process: `app.state.dashboard`."""

    views: tuple[DashboardView, ...]
    renderer: Renderer
    feeds: Feeds
    csrf_mark: str = field(default_factory=partial(token_hex, 16))
    writes: WriteCount = field(default_factory=WriteCount)
    reading: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, READ_AT_ONCE))

    def regions(self, request: Request, page: DashboardPage) -> dict[str, str]:
        """Render the live blocks of a page for all streams that share it."""
        return self.renderer.regions(page, self.frame(request, page) | {"csrf": self.csrf_mark})

    def frame(self, request: Request, page: DashboardPage) -> dict[str, Any]:
        """Return the values of a request that the layout shows."""
        principal = getattr(request.state, "principal", None)
        return {
            "title": page.title,
            "path": request.url.path,
            "query": request.query_params,
            "nav": [
                each
                for each in self.views
                if principal is not None and principal.may(each.scope) and each.is_shown(request)
            ],
            "views": {each.name for each in self.views},
            "who": None if principal is None or principal is ANYBODY else principal.id,
            "csrf": "" if principal is None else sessions_of(request).csrf_token(request),
            "can": lambda scope: principal is not None and may(request, Scope(scope)),
            "now": state_of(request).ledger.clock.time(),
            "notice": unquote(request.cookies.get(NOTICE, ""))[:MAX_NOTICE],
        }

    def show(self, request: Request, page: DashboardPage) -> Response:
        """Render a page as an answer."""
        html = self.renderer.html(page, self.frame(request, page))
        response = HTMLResponse(html, page.status_code, headers=HEADERS)
        if NOTICE in request.cookies:
            response.delete_cookie(NOTICE, path=PATH)
        return response


def dashboard_of(request: Request) -> Dashboard:
    dashboard: Dashboard = request.app.state.dashboard
    return dashboard


class PageRoute(GuardedRoute):
    """A route whose answers, errors included, are pages."""

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def shown(request: Request) -> Response:
            live = request.headers.get("accept") == MEDIA_TYPE
            writes = dashboard_of(request).writes
            writes_before = writes.number
            try:
                if request.method == "GET":
                    async with dashboard_of(request).reading:
                        response = await handle(request)
                else:
                    response = await handle(request)
                    # What somebody has just mended is not to be reported for half a minute more.
                    request.app.state.readings.doctor.outdate()
                if not isinstance(response, DashboardPage):
                    return response
                await dashboard_of(request).renderer.load(response)
                if live:
                    return _stream(request, handle, response)
            except (
                SwitchyardError,
                BrokerError,
                HTTPException,
                RequestValidationError,
                ClientDisconnect,
            ) as error:
                problem = problem_of(error)
                if live or problem.kind.name == "internal-error":
                    raise
                if problem.kind.name == "unauthorized" and request.method == "GET":
                    return _to_sign_in(request)
                advice = _advice(error, request.method, has_written=writes.number > writes_before)
                response = _trouble(problem, request, advice)
                await dashboard_of(request).renderer.load(response)
            return dashboard_of(request).show(request, response)

        return shown


def _to_sign_in(request: Request) -> Response:
    target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"{PATH}/login?next={quote(target, safe='')}", 303, headers=HEADERS)


def _advice(error: Exception, method: str, *, has_written: bool) -> str | None:
    """Return what to do where the API's own text is for programs that repeat their requests.
    `has_written`: this process has written to the ledger since the request came, perhaps the first
    part of an action of several transactions."""
    what = "A part of it may be done, the rest was not" if has_written else "Nothing was done"
    look = " Look before you repeat it." if has_written else ""
    match error:
        case LedgerReadOnly() if method != "GET":
            return (
                f"{what}: the ledger can be read, but takes no writes.{look} The overview says "
                "why and what to do, as does `jobctl doctor`."
            )
        case LedgerLocked() if method != "GET":
            return (
                f"{what}: another process holds the ledger, which has the record of every "
                f"job.{look} The overview says which and what to do, as does `jobctl doctor`."
            )
        case LedgerFull():
            return None
        case LedgerError() if method == "GET":
            return (
                "The ledger, which has the record of every job, can't be read, so there is nothing "
                "to show. `jobctl doctor` says why and what to do."
            )
        case LedgerError():
            return (
                "The ledger, which has the record of every job, does not answer. It may have been "
                "done: look before you repeat it. `jobctl doctor` says why and what to do."
            )
        case BrokerUnavailable(maybe_accepted=True):
            return (
                "The broker has not confirmed it. It may have been done: look before you repeat it."
            )
        case BrokerUnavailable():
            return (
                "Nothing was done: the broker does not take jobs now. The overview says why and "
                "what to do, as does `jobctl doctor`."
            )
        case _:
            return None


def _trouble(problem: Problem, request: Request, advice: str | None) -> DashboardPage:
    status = int(problem.kind.status)
    may_pass = request.method == "GET" and status == HTTPStatus.SERVICE_UNAVAILABLE
    context = {
        "status": status,
        "heading": problem.kind.title,
        "detail": advice or problem.detail,
        "again": request.url.path + (f"?{request.url.query}" if request.url.query else "")
        if may_pass
        else None,
    }
    return DashboardPage("trouble.html", context, title=problem.kind.title, status=status)


def _stream(request: Request, handle: Handler, first: DashboardPage) -> Response:
    """Stream the live blocks of a page. All streams of one address with the same scopes share one
    reading, in which a placeholder stands for each session's form token."""
    dashboard = dashboard_of(request)

    principal = request.state.principal
    # A request of its own, as the reading goes on for others when the first reader has gone.
    state = {"principal": principal, "principal_id": principal.id}
    shared = Request({**request.scope, "state": state}, request.receive)

    page = first
    read_at = rendered_at = time.monotonic()

    async def read() -> dict[str, str]:
        nonlocal page, read_at, rendered_at
        head, now = page.head, time.monotonic()
        is_due = now - rendered_at >= MAX_PAGE_AGE
        is_old = now - read_at >= MAX_PAGE_AGE and not (head is not None and head.covers_all)
        if head is None or is_old or await head.read() != head.value:
            async with dashboard.reading:
                fresh, read_at = await handle(shared), now
            if not isinstance(fresh, DashboardPage):
                return {}
            is_due |= fresh.context != page.context or fresh.template != page.template
            page = fresh
        if not is_due:
            return {}
        rendered_at = now
        return dashboard.regions(shared, page)

    key = (principal.scopes, str(request.url))
    mark, token = (dashboard.csrf_mark.encode(), sessions_of(request).csrf_token(request).encode())
    slot = StreamSlot(request)

    async def frames() -> AsyncGenerator[bytes, None]:
        known = dashboard.regions(shared, first)
        async with aclosing(dashboard.feeds.follow(key, read, known)) as following:
            async for each in following:
                yield each.replace(mark, token)

    return EventStream(frames(), closing=slot.leave)


class Pages(Routes):
    """The routes of one view: `GET` shows a page; `POST` acts, and redirects to the page that shows
    the result."""

    def __init__(self, view: DashboardView, *, route_class: type[GuardedRoute] = PageRoute) -> None:
        super().__init__(
            prefix=view.path,
            dependencies=[allows(view.scope)],
            include_in_schema=False,
        )
        self.view = view
        self.route_class = route_class


def allows(scope: Scope | None) -> Any:
    """Return a dependency that admits sessions with this scope or `admin`; None: any session."""
    return Depends(SessionGuard(scope))


def done(to: str, notice: str) -> Response:
    """Redirect from a form to a page of the dashboard, which shows the notice once."""
    response = RedirectResponse(to, 303, headers=HEADERS)
    response.set_cookie(
        NOTICE, quote(notice[:MAX_NOTICE]), max_age=60, path=PATH, httponly=True, samesite="strict"
    )
    return response
