"""A virtual host of our own on a broker that others use as well."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from switchyard.cli.base.errors import CommandFailed

if TYPE_CHECKING:
    import httpx

    from switchyard.cli.system.brokers import FoundBroker

TIMEOUT = 10.0
EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}


@contextmanager
def temporary_vhost(found: FoundBroker, name: str) -> Iterator[str | None]:
    """The AMQP address of a new virtual host, removed at the end; None where we may make none.

    When there is one of that name already, somebody else's demo runs in it: then it gets another.
    """
    from switchyard.broker.settings import with_vhost

    with _management(found) as http:
        there = _send(http, "GET", f"/vhosts/{quote(name, safe='')}")
        if there.is_success:
            name = f"{name}-{secrets.token_hex(3)}"
        if not make_vhost(found, http, name):
            yield None
            return
        try:
            yield with_vhost(found.amqp_url, name)
        finally:
            import httpx

            with suppress(httpx.HTTPError):  # the broker has gone before it: nothing is left
                http.delete(f"/vhosts/{quote(name, safe='')}")


def permanent_vhost(found: FoundBroker, name: str) -> str:
    """The AMQP address of the virtual host of that name, made where there is none.

    Raises CommandFailed when this user may not make it.
    """
    from switchyard.broker.settings import with_vhost

    with _management(found) as http:
        if not make_vhost(found, http, name):
            raise CommandFailed(
                f"{found.what} does not let us make the virtual host {name!r}: "
                "set JOBS_AMQP_URL to one that may be used"
            )
    return with_vhost(found.amqp_url, name)


def make_vhost(found: FoundBroker, http: httpx.Client, name: str) -> bool:
    """Make it and permit our user everything in it; False when we may not."""
    user = unquote(urlsplit(found.amqp_url).username or "guest")
    path = quote(name, safe="")
    made = _send(http, "PUT", f"/vhosts/{path}")
    if made.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return False
    permitted = _send(http, "PUT", f"/permissions/{path}/{quote(user, safe='')}", EVERYTHING)
    return made.is_success and permitted.is_success


@contextmanager
def _management(found: FoundBroker) -> Iterator[httpx.Client]:
    import httpx

    parts = urlsplit(found.management_url)
    login = (unquote(parts.username or "guest"), unquote(parts.password or "guest"))
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    base = f"{parts.scheme}://{host}:{parts.port or 15672}{parts.path}".rstrip("/")
    with httpx.Client(base_url=f"{base}/api", auth=login, timeout=TIMEOUT) as client:
        yield client


def _send(
    http: httpx.Client, method: str, path: str, body: dict[str, str] | None = None
) -> httpx.Response:
    import httpx

    try:
        return http.request(method, path, json=body)
    except httpx.HTTPError as error:
        raise CommandFailed(
            f"can't reach the management API ({error}): set JOBS_MANAGEMENT_URL, and enable the "
            "plugin: rabbitmq-plugins enable rabbitmq_management"
        ) from error
