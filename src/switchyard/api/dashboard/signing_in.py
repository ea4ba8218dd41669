"""Signing in and out, the files of the pages, and `/docs`."""

from __future__ import annotations

from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from fastapi import Depends, Request
from starlette.responses import FileResponse, RedirectResponse, Response

from switchyard.api.dashboard.pages import (
    HEADERS,
    DashboardPage,
    PageRoute,
    allows,
    dashboard_of,
    done,
)
from switchyard.api.dashboard.sessions import (
    COOKIE,
    PATH,
    form_fields,
    require_same_origin,
    sessions_of,
    set_cookie,
)
from switchyard.api.http.problems import Problem
from switchyard.api.http.routing import BodyBound, Routes
from switchyard.api.state import Shared
from switchyard.services.engine.records.errors import LedgerReadOnly

MAX_KEY_LENGTH = 500
MAX_SIGN_IN_BYTES = 8 * 1024
"""Bytes of the form to sign in, which anybody can send: a key, and the page to go to."""
SWAGGER_FILES = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}

router = Routes(include_in_schema=False)
router.route_class = PageRoute
file_router = Routes(include_in_schema=False)
"""Static files, outside of the limit on pages that are read at a time (`PageRoute`)."""


def _page_of_ours(target: str) -> str:
    """Return the page to go to after signing in: `target` if it is a page of the dashboard."""
    is_ours = target == PATH or target.startswith((f"{PATH}/", f"{PATH}?"))
    return target if is_ours and target.isprintable() and "\\" not in target else PATH


@router.get(f"{PATH}/login")
async def show_login(request: Request, state: Shared, next: str = PATH) -> Response:  # noqa: A002
    """Ask for an API key; where there are no keys, go on without one."""
    if not await state.keys.has_keys():
        return RedirectResponse(PATH, 303, headers=HEADERS)
    return DashboardPage(
        "login.html", {"next": _page_of_ours(next), "wrong": False}, title="Sign in"
    )


@router.post(f"{PATH}/login", dependencies=[Depends(BodyBound(MAX_SIGN_IN_BYTES))])
async def sign_in(request: Request) -> Response:
    """Begin a session with the API key of the form."""
    require_same_origin(request)
    fields = await form_fields(request)
    target = _page_of_ours(fields.get("next", PATH))
    store = sessions_of(request)
    token = await store.begin(fields.get("key", "")[:MAX_KEY_LENGTH].strip())
    if token is None:
        context = {"next": target, "wrong": True}
        return DashboardPage("login.html", context, title="Sign in", status=403)
    with suppress(LedgerReadOnly):  # the session before ends by its age
        await store.end(request.cookies.get(COOKIE))
    response = RedirectResponse(target, 303, headers=HEADERS)
    set_cookie(request, response, token)
    return response


@router.post(f"{PATH}/logout", dependencies=[allows(None)])
async def sign_out(request: Request) -> Response:
    """End the session."""
    await sessions_of(request).end(request.cookies.get(COOKIE))
    response = done(f"{PATH}/login", "Signed out.")
    response.delete_cookie(COOKIE, path=PATH)
    return response


@file_router.get(f"{PATH}/static/{{name}}")
async def show_file(request: Request, name: str) -> Response:
    """Send a static file of the dashboard, without a session: the page to sign in needs these
    files, too."""
    return dashboard_of(request).renderer.assets.response(name)


@router.get("/docs")
async def show_docs() -> Response:
    """Show Swagger UI, which asks for an API key for the calls that it tries."""
    return DashboardPage("docs.html", {}, title="API")


@file_router.get("/docs/{name}")
async def show_docs_file(name: str) -> Response:
    """Send a file of Swagger UI, from the package that ships it."""
    spec = find_spec("fastapi_offline")
    if name not in SWAGGER_FILES or spec is None or spec.origin is None:
        raise Problem("not-found", "there is no such file")
    file = Path(spec.origin).parent / "static" / name
    return FileResponse(
        file, media_type=SWAGGER_FILES[name], headers={"Cache-Control": "public, max-age=86400"}
    )
