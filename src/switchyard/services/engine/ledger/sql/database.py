"""Connections: one interface, so that the rest of the package is plain SQLAlchemy Core.

A transaction's body is a function of a `sqlalchemy.Connection`. For SQLite, the whole body runs in
a thread: one thread writes (SQLite has one writer anyway) and a few read. For PostgreSQL, it runs
on asyncpg.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, exc, make_url
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.pool import NullPool, QueuePool

from switchyard.broker.forking import OwnerProcess
from switchyard.services.common.library_loading import load
from switchyard.services.engine.ledger.sql.clock import Clock
from switchyard.services.engine.ledger.sql.driver_errors import (
    TransactionConflict,
    raise_translated,
    translate,
)
from switchyard.services.engine.ledger.sql.postgres_servers import (
    DEFAULT_PORT,
    MAX_OVERFLOW,
    POOL_SIZE,
    connection_options,
    is_demoted,
    open_writable,
    servers_of,
)
from switchyard.services.engine.records.errors import (
    LedgerConnectionLimit,
    LedgerError,
    LedgerForked,
    LedgerMisconfigured,
    LedgerMissing,
    LedgerUnavailable,
)

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

T = TypeVar("T")
TransactionBody = Callable[[Connection], T]

BUSY_TIMEOUT = 30.0
"""Seconds that a write waits for another process before the ledger counts as unavailable."""

CONNECT_TIMEOUT = 10.0
"""Seconds for PostgreSQL to answer a new connection."""

FAIL_FAST_TIMEOUT = 0.9
"""Seconds that a `fail_fast` ledger waits, instead of the two above, for a database that does not
answer. A write may take twice as long, as it may be queued behind one that has just begun to
wait."""

MAX_FAIL_FAST_WAIT = 10.0
"""Seconds that a write of a `fail_fast` ledger waits while other processes write into the file: the
ledger is there, but the machine is busy."""
TURN_POLL_INTERVAL = 0.003
"""Seconds between attempts of a `fail_fast` ledger to begin a write. SQLite's own wait tries
ten times a second in the end, and always too late where another process writes again at once."""

MIN_SQLITE_VERSION = (3, 35)
"""The first version with RETURNING and materialised common table expressions."""

MAX_READERS = 4
WRITER_CACHE, READER_CACHE = 8 * 1024, 1024
"""KiB of pages that each connection to SQLite caches. With two and four times as much, a backfill
and a worker's jobs were no faster, and a process was 17 MB larger: the system caches the file,
too."""
JOURNAL_SUFFIX = "#restoring"
"""Suffix of the file beside a ledger's that marks a restore under way."""
MAX_CONFLICT_RETRIES = 10
"""Retries of a transaction that conflicts with transactions of other processes."""


class Database(Protocol):
    """Runs the transactions of a ledger."""

    dialect: str
    clock: Clock
    location: str
    """The file, or server and database, without credentials."""

    async def read(self, body: TransactionBody[T]) -> T:
        """Run `body`, which only reads, in a transaction. In PostgreSQL, each statement is a
        transaction of its own, and sees as much as it would under READ COMMITTED. Raises
        LedgerError."""
        ...

    async def write(self, body: TransactionBody[T]) -> T:
        """Run `body` in a transaction; it may be run again. Raises LedgerError."""
        ...

    async def write_each(self, body: TransactionBody[T]) -> T:
        """Run `body`, whose statements may be committed one by one, which saves the round trips of
        BEGIN and COMMIT to PostgreSQL. It may be run again after some of its statements were
        committed. Raises LedgerError."""
        ...

    async def sync(self) -> None:
        """Wait until all that was committed outlives the loss of power. Raises LedgerError."""
        ...

    async def close(self) -> None: ...


async def connect(url: str, *, fail_fast: bool = False, create: bool = False) -> Database:
    """Return the database at that SQLAlchemy address. With `fail_fast`, it waits only for
    FAIL_FAST_TIMEOUT seconds. With `create`, a missing file of SQLite is created; without, its use
    raises LedgerMissing. Raises LedgerError for an address of another kind."""
    servers = servers_of(url)
    try:
        parsed = make_url(servers[0])
    except (exc.ArgumentError, ValueError):
        # `from None`: a port that is no number is quoted, perhaps a piece of a password.
        raise LedgerMisconfigured("the ledger's address can't be read: " + ADDRESS_FORMS) from None
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        return SqliteDatabase(parsed, fail_fast=fail_fast, create=create)
    if backend in ("postgresql", "postgres"):
        # Loaded only here: it takes a third of a second, with SQLAlchemy's object mapper.
        await load("sqlalchemy.ext.asyncio", "sqlalchemy.dialects.postgresql.asyncpg", "asyncpg")
        return PostgresDatabase([make_url(each) for each in servers], fail_fast=fail_fast)
    raise LedgerMisconfigured(f"the ledger can't use {backend!r}: {ADDRESS_FORMS}")


ADDRESS_FORMS = "use sqlite+aiosqlite:///FILE or postgresql+asyncpg://USER:PASSWORD@HOST/DATABASE"


class SqliteDatabase:
    """Uses a file in WAL mode; creates it, with its directory, only with `create`.

    An event loop that is busy gives a thread the interpreter lock only now and then. So a
    transaction visits its thread once, as a whole, and not once per statement as the async
    driver of SQLite does.
    """

    dialect = "sqlite"

    def __init__(self, url: URL, *, fail_fast: bool = False, create: bool = False) -> None:
        if not url.database or url.database == ":memory:":
            raise LedgerMisconfigured(
                f"the ledger needs a file to outlive the process: {ADDRESS_FORMS}"
            )
        if sqlite3.sqlite_version_info < MIN_SQLITE_VERSION:
            raise LedgerMisconfigured(
                f"SQLite {sqlite3.sqlite_version} is too old: use 3.35 or later, or PostgreSQL"
            )
        self.clock = Clock()
        self._owner = OwnerProcess()
        file = Path(url.database).absolute()
        self.location = str(file)
        busy_timeout = FAIL_FAST_TIMEOUT if fail_fast else BUSY_TIMEOUT
        opener = partial(_open_file, file, busy_timeout, create)
        begin = _begin_fail_fast if fail_fast else _begin
        self._write_engine = _sqlite_engine(opener, begin, 1, WRITER_CACHE, busy_timeout)
        self._read_engine = _sqlite_engine(
            opener, _begin_reading, MAX_READERS, READER_CACHE, busy_timeout
        )
        self._writer = ThreadPoolExecutor(1, "ledger-writer")
        self._readers = ThreadPoolExecutor(MAX_READERS, "ledger-reader")

    async def read(self, body: TransactionBody[T]) -> T:
        return await self._run(self._readers, self._read_engine, body)

    async def write(self, body: TransactionBody[T]) -> T:
        return await self._run(self._writer, self._write_engine, body)

    async def write_each(self, body: TransactionBody[T]) -> T:
        return await self.write(body)

    async def sync(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._readers, self._sync)
        except OSError as error:
            raise LedgerUnavailable(f"can't sync the ledger at {self.location}: {error}") from error

    def _sync(self) -> None:
        # SQLite writes commits into this file, and syncs it only at checkpoints (synchronous =
        # NORMAL). Where it is missing, a checkpoint has written everything. SQLite holds no lock on
        # it, so closing this descriptor drops none.
        with suppress(FileNotFoundError), Path(f"{self.location}-wal").open("rb") as log:
            os.fsync(log.fileno())

    async def close(self) -> None:
        if not self._owner.is_current:
            return  # after a fork, the threads and the file's locks are the parent's
        loop = asyncio.get_running_loop()
        for executor, engine in (
            (self._readers, self._read_engine),
            (self._writer, self._write_engine),
        ):
            await loop.run_in_executor(executor, engine.dispose)
            executor.shutdown(wait=False)

    async def _run(
        self, executor: ThreadPoolExecutor, engine: Engine, body: TransactionBody[T]
    ) -> T:
        if not self._owner.is_current:
            raise LedgerForked
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(executor, self._transact, engine, body)
        except Exception as error:
            raise_translated(error)

    def _transact(self, engine: Engine, body: TransactionBody[T]) -> T:
        with engine.begin() as connection:
            return self.clock.with_measurement(body)(connection)


class _ConnectionLost(Exception):
    """The connection was lost before the commit: the transaction can run on another one."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        super().__init__(str(error))


class PostgresDatabase:
    """Uses a PostgreSQL server. Connections that a restart has cut are replaced unnoticed."""

    dialect = "postgresql"

    def __init__(self, urls: Sequence[URL], *, fail_fast: bool = False) -> None:
        """Connect to the one of `urls` whose server takes writes; they differ in the host alone."""
        # Imported here: it loads SQLAlchemy's object mapper, which SQLite does without.
        from sqlalchemy.ext.asyncio import create_async_engine

        self.clock = Clock()
        self._owner = OwnerProcess()
        self._fail_fast = fail_fast
        url = urls[0]
        names = [
            f"{each.host or 'localhost'}{f':{each.port}' if each.port else ''}" for each in urls
        ]
        self.location = f"postgresql://{','.join(names)}/{url.database or ''}"
        hosts = [(each.host or "localhost", each.port or DEFAULT_PORT) for each in urls]
        multiple_hosts = (
            {"async_creator_fn": partial(open_writable, hosts)} if len(hosts) > 1 else {}
        )
        self._abandoned_tasks: set[asyncio.Task[Any]] = set()
        make_engine = partial(
            create_async_engine,
            url.set(drivername="postgresql+asyncpg"),
            connect_args={
                "timeout": FAIL_FAST_TIMEOUT if fail_fast else CONNECT_TIMEOUT,
                "command_timeout": BUSY_TIMEOUT,
                **multiple_hosts,
                **connection_options(),
            },
        )
        self._engine = make_engine(
            pool_size=POOL_SIZE, max_overflow=MAX_OVERFLOW, pool_use_lifo=True
        )
        self._probe_engine = make_engine(poolclass=NullPool)
        self._probe: asyncio.Task[bool] | None = None
        event.listen(self._engine.sync_engine, "handle_error", _disconnect_demoted)
        # The same connections, on which each statement is a transaction.
        self._autocommit_engine = self._engine.execution_options(isolation_level="AUTOCOMMIT")

    async def read(self, body: TransactionBody[T]) -> T:
        # BEGIN and ROLLBACK would be two round trips more.
        return await self._run(partial(self._run_once, body, engine=self._autocommit_engine))

    async def write(self, body: TransactionBody[T]) -> T:
        return await self._retry_conflicts(partial(self._run_once, body, commit=True))

    async def write_each(self, body: TransactionBody[T]) -> T:
        return await self._retry_conflicts(
            partial(self._run_once, body, engine=self._autocommit_engine)
        )

    async def _retry_conflicts(self, attempt: Callable[[], Awaitable[T]]) -> T:
        for _ in range(MAX_CONFLICT_RETRIES):
            try:
                return await self._run(attempt)
            except TransactionConflict:
                continue
        return await self._run(attempt)

    async def sync(self) -> None:
        """Return at once: the server has synced what it has committed."""

    async def _run(self, attempt: Callable[[], Awaitable[T]]) -> T:
        if not self._owner.is_current:
            raise LedgerForked
        if not self._fail_fast:
            return await self._run_with_retries(attempt)
        task = asyncio.create_task(self._run_with_retries(attempt))
        try:
            await asyncio.wait((task,), timeout=FAIL_FAST_TIMEOUT)
            # A long query is no outage: a server that answers a short query is there.
            if not task.done() and not await self._is_answering() and not task.done():
                raise LedgerUnavailable("the ledger's database does not answer")
            return await task
        finally:
            if not task.done():
                # The caller must not wait until a broken connection is closed.
                task.cancel()
                self._abandoned_tasks.add(task)
                task.add_done_callback(self._forget_abandoned)

    async def _is_answering(self) -> bool:
        """Tell whether the server answers a short query: one for all who ask at the same time."""
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._probe_server())
        return await asyncio.shield(self._probe)

    async def _probe_server(self) -> bool:
        """Query the server on a connection of its own, as those of the pool may all be busy."""

        def select_one(connection: Connection) -> None:
            connection.exec_driver_sql("SELECT 1")

        try:
            async with asyncio.timeout(FAIL_FAST_TIMEOUT):
                await self._run_once(select_one, engine=self._probe_engine)
        except Exception as error:
            translated = translate(error)
            if not isinstance(translated, LedgerError):
                raise
            # A server that refuses a further connection is there, and those of the pool go on.
            return isinstance(translated, LedgerConnectionLimit)
        return True

    def _forget_abandoned(self, task: asyncio.Task[Any]) -> None:
        self._abandoned_tasks.discard(task)
        if not task.cancelled():
            task.exception()  # nobody waits for it any more

    async def _run_with_retries(self, attempt: Callable[[], Awaitable[T]]) -> T:
        try:
            try:
                return await attempt()
            except _ConnectionLost:
                # The pool has dropped all connections of that age, so this is a new one. Testing
                # each before its use would cost three round trips every time.
                return await attempt()
        except _ConnectionLost as error:
            raise_translated(error.error)
        except Exception as error:
            raise_translated(error)

    async def _run_once(
        self,
        body: TransactionBody[T],
        *,
        commit: bool = False,
        engine: AsyncEngine | None = None,
    ) -> T:
        async with (engine or self._engine).connect() as connection:
            try:
                result = await connection.run_sync(self.clock.with_measurement(body))
            except exc.DBAPIError as error:
                if error.connection_invalidated:
                    raise _ConnectionLost(error) from error
                raise
            if commit:
                await connection.commit()
            return result

    async def close(self) -> None:
        if self._owner.is_current:  # after a fork, this would close the parent's connections
            await self._engine.dispose()


def _disconnect_demoted(context: ExceptionContext) -> None:
    """Treat connections to a demoted server as cut, so that the next ones lead to the server that
    takes writes now."""
    if is_demoted(context.original_exception):
        context.is_disconnect = True


def _open_file(file: Path, busy_timeout: float, create: bool) -> sqlite3.Connection:
    """Open a database file. Raises LedgerMissing if there is none and none is to be created: a
    mistyped address must not become an empty ledger."""
    if create and file.with_name(file.name + JOURNAL_SUFFIX).exists():
        raise LedgerMisconfigured(
            f"a restore of the ledger at {file} was interrupted: run `jobctl backup restore` again"
        )
    if create:
        # Other users must not read payloads and documents. An existing directory keeps its mode.
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    mode = "rwc" if create else "rw"
    try:
        return sqlite3.connect(
            f"file:{quote(str(file))}?mode={mode}",
            uri=True,
            timeout=busy_timeout,
            check_same_thread=False,
        )
    except sqlite3.OperationalError as error:
        if create or file.exists():
            raise
        raise LedgerMissing(str(file)) from error


def _use_write_ahead_log(connection: sqlite3.Connection, busy_timeout: float) -> None:
    """Switch the file to a write-ahead log, where it has none. Retries while another process does
    the same to a new file: SQLite's own time-out does not cover this."""
    deadline = time.monotonic() + busy_timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)  # in the ledger's own thread
        else:
            return


def _sqlite_engine(
    opener: Callable[[], sqlite3.Connection],
    begin: Callable[[Connection], object],
    pool_size: int,
    cache_kib: int,
    busy_timeout: float,
) -> Engine:
    engine = create_engine(
        "sqlite://", creator=opener, poolclass=QueuePool, pool_size=pool_size, max_overflow=0
    )

    def prepare(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # transactions are begun below, not by the driver
        _use_write_ahead_log(connection, busy_timeout)
        for pragma in (
            "synchronous = NORMAL",
            f"cache_size = -{cache_kib}",
            "wal_autocheckpoint = 4000",
        ):
            connection.execute(f"PRAGMA {pragma}")

    event.listen(engine, "connect", prepare)
    event.listen(engine, "begin", begin)
    return engine


def _begin_reading(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _begin_fail_fast(connection: Connection) -> None:
    """Begin to write when no other process does. Raises OperationalError when the file was locked
    for FAIL_FAST_TIMEOUT seconds in which nobody has written, or for MAX_FAIL_FAST_WAIT."""
    sqlite_connection = connection.connection.driver_connection
    assert isinstance(sqlite_connection, sqlite3.Connection)
    began = silent_since = time.monotonic()
    version = None
    sqlite_connection.execute("PRAGMA busy_timeout = 0")
    while time.monotonic() < min(silent_since + FAIL_FAST_TIMEOUT, began + MAX_FAIL_FAST_WAIT):
        try:
            sqlite_connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                break
        else:
            return
        with suppress(sqlite3.OperationalError):
            # It changes with each commit of another connection.
            (new_version,) = sqlite_connection.execute("PRAGMA data_version").fetchone()
            if version not in (None, new_version):
                silent_since = time.monotonic()
            version = new_version
        time.sleep(TURN_POLL_INTERVAL)  # in the ledger's own thread
    _begin(connection)  # raises the error as SQLAlchemy's
