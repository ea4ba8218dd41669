"""Connect to PostgreSQL; of several servers, to the one that takes writes now.

Ledger and index connect by these rules.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from switchyard.broker.addresses import check_address, nodes_of
from switchyard.broker.happy_eyeballs import ATTEMPT_DELAY, AllAttemptsFailed, connect_first
from switchyard.broker.wire.tcp_timeout import set_tcp_user_timeout
from switchyard.services.engine.records.errors import LedgerMisconfigured

DEFAULT_PORT = 5432
POOL_SIZE, MAX_OVERFLOW = 5, 10
"""Connections of a process to its ledger: those that stay open, and further ones under load."""
ABANDONED_TIMEOUT = 20.0
"""Seconds after which the server ends an idle transaction. Its process is frozen, or its host is
cut off, and others wait for the rows that it has locked."""
_READ_ONLY = "25006"
_SCHEMES = ("postgresql+asyncpg", "postgresql", "postgres")
_EXAMPLE = "postgresql+asyncpg://USER:PASSWORD@HOST:5432,HOST:5432/DATABASE"


def servers_of(url: str) -> tuple[str, ...]:
    """Return one address for each host that `url` names; an address of SQLite as it is.

    Raises LedgerMisconfigured where addresses differ in more than the host, or can't be read.
    """
    if not url.startswith("postgres"):
        return (url,)
    servers = nodes_of(url)
    if len(servers) > 1:
        try:
            check_address(url, _SCHEMES, _EXAMPLE)
        except ValueError as error:
            raise LedgerMisconfigured(f"JOBS_DATABASE_URL: {error}") from None
    return servers


def connection_options() -> dict[str, Any]:
    """Return the options of `asyncpg.connect` for all our connections: settings of the server's
    side, and the detection of cut connections."""
    milliseconds = f"{ABANDONED_TIMEOUT * 1000:.0f}"
    return {
        "server_settings": {
            "application_name": "switchyard",
            # The statements are short and many: compiling them costs more than it saves.
            "jit": "off",
            "idle_in_transaction_session_timeout": milliseconds,
            # Without it, the server would send for a quarter of an hour to a client that is cut
            # off.
            "tcp_user_timeout": milliseconds,
        },
        "connection_class": _watched_connection(),
    }


@cache
def _watched_connection() -> type[Any]:
    """Return a class of asyncpg connections whose sockets notice a server that is cut off."""
    import asyncpg

    class WatchedConnection(asyncpg.Connection):  # type: ignore[misc]
        def __init__(self, protocol: Any, transport: Any, *rest: Any) -> None:
            super().__init__(protocol, transport, *rest)
            set_tcp_user_timeout(transport.get_extra_info("socket"))

    return WatchedConnection


def is_demoted(error: BaseException | None) -> bool:
    """Tell whether a write came to a standby, or to a demoted primary. Such a server keeps its
    connections open and refuses every write, so they have to be closed."""
    return getattr(error, "sqlstate", None) == _READ_ONLY


async def open_connection(address: str, **options: Any) -> Any:
    """Return a connection of asyncpg to that address; if it names several hosts, to the one that
    takes writes. `options` and errors are those of `asyncpg.connect` and `open_writable`."""
    import asyncpg

    nodes = nodes_of(address)
    if len(nodes) == 1:
        return await asyncpg.connect(address, **options)
    try:
        parts = [urlsplit(each) for each in nodes]
        hosts = [(each.hostname or "localhost", each.port or DEFAULT_PORT) for each in parts]
    except ValueError:
        # `from None`: the message quotes what it can't read, perhaps a password.
        raise ConnectionError("the address of the hosts can't be read") from None
    return await open_writable(hosts, dsn=nodes[0], **options)


async def open_writable(hosts: Sequence[tuple[str, int]], **options: Any) -> Any:
    """Return a connection of asyncpg to the host that takes writes; `options` are those of
    `asyncpg.connect`. A host that does not answer does not delay the others: see `connect_first`.

    Raises the error of a server that refuses the password, the database or another connection; else
    ConnectionError, also where all are standbys.
    """
    import asyncpg

    other_options = {name: each for name, each in options.items() if name not in ("host", "port")}
    refusals = (
        asyncpg.InvalidAuthorizationSpecificationError,
        asyncpg.InvalidCatalogNameError,
        asyncpg.TooManyConnectionsError,
    )

    def attempt(host: str, port: int) -> Callable[[], Coroutine[Any, Any, Any]]:
        return lambda: asyncpg.connect(
            host=host, port=port, target_session_attrs="read-write", **other_options
        )

    try:
        return await connect_first(
            [attempt(*each) for each in hosts],
            head_start=ATTEMPT_DELAY,
            failures=(OSError, asyncpg.PostgresError, asyncpg.InternalClientError),
            close=_terminate,
        )
    except AllAttemptsFailed as failure:
        for error in failure.errors:
            if isinstance(error, refusals):
                raise error from failure
        names = ", ".join(f"{host}:{port}" for host, port in hosts)
        reasons = "; ".join(sorted({_describe(each) for each in failure.errors}))
        raise ConnectionError(f"none of {names} takes writes: {reasons}") from failure


def _describe(error: Exception) -> str:
    return str(error) or ("no answer" if isinstance(error, TimeoutError) else type(error).__name__)


async def _terminate(connection: Any) -> None:
    connection.terminate()
