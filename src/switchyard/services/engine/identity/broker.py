"""Make sure that ledger and broker belong to one system, by a mark on the broker (ADR 11)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import structlog
from aiormq.connection import Connection

from switchyard.broker.addresses import display_address
from switchyard.broker.errors import BrokerUnavailable, WrongSystem
from switchyard.broker.settings import BrokerSettings
from switchyard.broker.topology.system_mark import (
    MarkUnreadable,
    SystemMark,
    marking_alone,
    read_mark,
    write_mark,
)
from switchyard.broker.wire.connection import connected, underlying
from switchyard.broker.wire.failures import raising_broker_unavailable
from switchyard.broker.wire.reconnector import Guard, Reconnector
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.errors import LedgerUnavailable
from switchyard.services.engine.records.system import SystemRecord

CONNECTION = "system check"
"""Name of the connection on the broker."""
MAX_READS, READ_PAUSE = 5, 0.1
"""The broker's mark may be newer than the generation just read from the ledger: number of reads,
and the seconds between them."""


async def require_same_system(settings: BrokerSettings, ledger: Ledger) -> None:
    """Check that the broker belongs to the ledger's system. A broker without a mark is free.

    Raises WrongSystem where it is another system's, or has gone on since the ledger was copied;
    BrokerUnavailable, LedgerError.
    """
    async with connected(settings.require_amqp_url(), CONNECTION) as connection:
        await system_guard(settings, ledger)(underlying(connection))


def system_guard(settings: BrokerSettings, ledger: Ledger) -> Guard:
    """Return `require_same_system` for open connections: a Publisher calls it for each that it
    opens."""

    async def check(connection: Connection) -> None:
        await _require_own_mark(settings, ledger, await _read_mark(connection))

    return check


async def _require_own_mark(
    settings: BrokerSettings, ledger: Ledger, mark: SystemMark | None
) -> None:
    """Raise WrongSystem where the broker's mark is not the ledger's."""
    if mark is None:
        return
    for _ in range(MAX_READS):
        try:
            system = await ledger.system.system()
        except LedgerUnavailable as error:
            raise BrokerUnavailable(
                f"the ledger can't say whose broker this must be: {error}",
                maybe_accepted=False,
            ) from error
        if mark.id != system.id or mark.generation <= system.generation:
            break
        await asyncio.sleep(READ_PAUSE)
    _require_match(settings, ledger, system, mark)


def _require_match(
    settings: BrokerSettings, ledger: Ledger, system: SystemRecord, mark: SystemMark
) -> None:
    """Raise WrongSystem, which names both systems, unless the mark is that of the ledger's."""
    broker = f"the broker at {display_address(settings.require_amqp_url())}"
    if mark.id != system.id:
        raise WrongSystem(
            f"the ledger at {ledger.location} is of the system {system}, and {broker} of the "
            f"system {mark}: set JOBS_DATABASE_URL or JOBS_DATA_DIR, and JOBS_AMQP_URL, to those "
            "of one system. Another system needs a virtual host of its own. If the broker's own "
            "ledger is gone for good, `jobctl system adopt` gives the broker to this one"
        )
    if mark.generation > system.generation:
        raise WrongSystem(
            f"the ledger at {ledger.location} is an old copy of the system {system}, of "
            f"{_time_of(system.generation)}, and {broker} has gone on with the system {mark} until "
            f"{_time_of(mark.generation)}: set JOBS_DATABASE_URL or JOBS_DATA_DIR to the ledger in "
            "use. If that one is lost, `jobctl system adopt` goes on with this copy, which does "
            "not know what was done in between"
        )


async def read_broker(settings: BrokerSettings) -> SystemMark | None:
    """Read which system the broker belongs to; None where it has no mark."""
    async with connected(settings.require_amqp_url(), CONNECTION) as connection:
        with raising_broker_unavailable("can't ask whose broker it is"):
            if (mark := await read_mark(underlying(connection))) is not None:
                return mark
            # Another process may be replacing it: then it is missing for some milliseconds.
            async with marking_alone(underlying(connection)):
                return await read_mark(underlying(connection))


async def mark_broker(settings: BrokerSettings, ledger: Ledger, *, take: bool = False) -> bool:
    """Mark a broker without a mark as the ledger's, in a new generation; with `take`, any broker.
    Return False if it is the ledger's already.

    Raises WrongSystem without `take`, MarkUnreadable, BrokerUnavailable, LedgerError.
    """
    async with connected(settings.require_amqp_url(), CONNECTION) as connection:
        transport = underlying(connection)
        with raising_broker_unavailable("can't mark the broker"):
            async with marking_alone(transport):
                if not take:
                    await system_guard(settings, ledger)(transport)
                try:
                    mark = await read_mark(transport)
                except MarkUnreadable:
                    if not take:
                        raise
                    mark = None
                if mark is not None and not take:
                    return False
                await _write(transport, ledger, mark)
    return True


async def begin_generation(
    settings: BrokerSettings, ledger: Ledger, reconnector: Reconnector | None = None
) -> None:
    """Begin a new generation of ledger and broker, so that a copy of the ledger made before is
    recognised as old. A broker that was never marked is left alone; one that has lost its mark
    gets it again. Without `reconnector`, a connection is opened for it.

    Raises WrongSystem, BrokerUnavailable, LedgerError.
    """
    if (await ledger.system.system()).generation == 0:
        return
    if reconnector is not None:
        await _advance(settings, ledger, await reconnector.connection_now())
        return
    async with connected(settings.require_amqp_url(), CONNECTION) as connection:
        await _advance(settings, ledger, underlying(connection))


async def _advance(settings: BrokerSettings, ledger: Ledger, transport: Connection) -> None:
    try:
        with raising_broker_unavailable("can't mark the broker"):
            async with marking_alone(transport):
                mark = await read_mark(transport)
                await _require_own_mark(settings, ledger, mark)
                await _write(transport, ledger, mark)
    except MarkUnreadable as error:
        structlog.get_logger("system").warning("system not checked", error=str(error))


async def _write(connection: Connection, ledger: Ledger, before: SystemMark | None) -> None:
    # The ledger first: a crash in between leaves a ledger that is newer, which does no harm.
    system = await ledger.system.advance_system(
        least=before.generation if before is not None else 0
    )
    await write_mark(connection, SystemMark(system.id, system.generation, system.name))


async def _read_mark(connection: Connection) -> SystemMark | None:
    try:
        with raising_broker_unavailable("can't ask whose broker it is"):
            return await read_mark(connection)
    except MarkUnreadable as error:
        structlog.get_logger("system").warning("system not checked", error=str(error))
        return None


def _time_of(generation: int) -> str:
    if generation == 0:
        return "a time before it was first used with a broker"
    return datetime.fromtimestamp(generation, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
