"""Virtual hosts of this system on a broker that others use, too."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from switchyard.cli.base.common import run
from switchyard.cli.base.errors import CommandFailed

if TYPE_CHECKING:
    from switchyard.broker.management.client import ManagementClient
    from switchyard.cli.system.local_broker import FoundBroker
    from switchyard.services.common.settings import Settings

VHOST = "switchyard"
"""The virtual host of a system without an id, and the prefix for systems with one."""


@contextmanager
def temporary_vhost(broker: FoundBroker, name: str) -> Iterator[str | None]:
    """Create a virtual host, removed at the end, and yield its AMQP address; None if this user may
    not create one.

    Where one of that name exists, another demo runs in it: another name is taken.
    """
    from switchyard.broker.addresses import with_vhost

    if run(has_vhost(broker, name)):
        name = f"{name}-{secrets.token_hex(3)}"
    if not run(make_vhost(broker, name)):
        yield None
        return
    try:
        yield with_vhost(broker.amqp_url, name)
    finally:
        run(_remove(broker, name))


async def own_vhost(broker: FoundBroker, settings: Settings) -> str:
    """Return the AMQP address of the virtual host of the ledger's system, on a broker that others
    may use as well; creates it, and the ledger, if missing.

    It is `switchyard-<id>`. A system from before there were ids goes on in `switchyard`, unless
    that is marked as another's. Raises CommandFailed when this user may not make it.
    """
    from switchyard.broker.addresses import with_vhost
    from switchyard.broker.errors import BrokerUnavailable
    from switchyard.broker.topology.system_mark import read_mark
    from switchyard.broker.wire.connection import connected, underlying
    from switchyard.broker.wire.failures import raising_broker_unavailable
    from switchyard.cli.base.common import open_ledger
    from switchyard.services.engine.ledger import upgrade
    from switchyard.services.engine.records.requests import JobFilter

    await upgrade(settings.ledger_url)
    async with open_ledger(settings) as ledger:
        system = await ledger.system.system()
        has_jobs = bool((await ledger.job_reads.list_jobs(JobFilter(), limit=1)).items)
    own = f"{VHOST}-{system.id}"
    if not await has_vhost(broker, own):
        try:
            async with connected(with_vhost(broker.amqp_url, VHOST), "jobctl") as connection:
                with raising_broker_unavailable("can't ask whose broker it is"):
                    mark = await read_mark(underlying(connection))
        except BrokerUnavailable:
            pass  # there is none
        else:
            if mark.id == system.id if mark is not None else has_jobs:
                return await permanent_vhost(broker, VHOST)
    return await permanent_vhost(broker, own)


async def has_vhost(broker: FoundBroker, name: str) -> bool:
    """Tell whether the broker has a virtual host of that name that this user may see."""
    from switchyard.broker.errors import ManagementForbidden

    async with _management(broker, name) as client:
        try:
            return await client.has_vhost()
        except ManagementForbidden:
            return False


async def permanent_vhost(broker: FoundBroker, name: str) -> str:
    """Return the AMQP address of the virtual host of that name; creates it if missing.

    Raises CommandFailed when this user may not make it.
    """
    from switchyard.broker.addresses import with_vhost

    if not await make_vhost(broker, name):
        raise CommandFailed(
            f"{broker.what} does not let us make the virtual host {name!r}: "
            "set JOBS_AMQP_URL to one that may be used"
        )
    return with_vhost(broker.amqp_url, name)


async def make_vhost(broker: FoundBroker, name: str) -> bool:
    """Create a virtual host and give this user all permissions in it; False if the user may not."""
    from switchyard.broker.addresses import nodes_of
    from switchyard.broker.errors import ManagementForbidden

    user = unquote(urlsplit(nodes_of(broker.amqp_url)[0]).username or "guest")
    async with _management(broker, name) as client:
        try:
            await client.put_vhost(user)
        except ManagementForbidden:
            return False
    return True


async def _remove(broker: FoundBroker, name: str) -> None:
    from switchyard.broker.errors import ManagementError

    async with _management(broker, name) as client:
        with suppress(ManagementError):  # the broker has stopped already, and the vhost with it
            await client.delete_vhost()


def _management(broker: FoundBroker, name: str) -> ManagementClient:
    from switchyard.broker.management.client import ManagementClient

    return ManagementClient(broker.management_url, name)
