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
    from switchyard.services.settings import Settings

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


VHOST = "switchyard"


async def own_vhost(found: FoundBroker, settings: Settings) -> str:
    """The AMQP address of the virtual host of the ledger's system, on a broker that others may use
    as well; it is made where there is none, and so is the ledger.

    It is `switchyard-<id>`. A system from before there were ids goes on in `switchyard`, unless
    that is marked as another's. Raises CommandFailed when this user may not make it.
    """
    from switchyard.broker.errors import BrokerAway
    from switchyard.broker.settings import with_vhost
    from switchyard.broker.topology.mark import read_mark
    from switchyard.broker.wire.away import meaning_away
    from switchyard.broker.wire.connection import connected, underlying
    from switchyard.cli.base.common import open_ledger
    from switchyard.services.ledger import upgrade
    from switchyard.services.records import JobFilter

    await upgrade(settings.ledger_url)
    async with open_ledger(settings) as ledger:
        system = await ledger.system()
        has_jobs = bool((await ledger.list_jobs(JobFilter(), limit=1)).items)
    own = f"{VHOST}-{system.id}"
    if not has_vhost(found, own):
        try:
            async with connected(with_vhost(found.amqp_url, VHOST), "jobctl") as connection:
                with meaning_away("can't ask whose broker it is"):
                    mark = await read_mark(underlying(connection))
        except BrokerAway:
            pass  # there is none
        else:
            if mark.id == system.id if mark is not None else has_jobs:
                return permanent_vhost(found, VHOST)
    return permanent_vhost(found, own)


def has_vhost(found: FoundBroker, name: str) -> bool:
    """Whether the broker has a virtual host of that name."""
    with _management(found) as http:
        return _send(http, "GET", f"/vhosts/{quote(name, safe='')}").is_success


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
