"""Check the ledger: it can be opened and written to, has tables of this version, belongs to the
broker's system, and its clock agrees with those of broker and host."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from switchyard.broker.errors import BrokerUnavailable, WrongSystem
from switchyard.broker.topology.system_mark import MarkUnreadable
from switchyard.services.common.durations import duration_text
from switchyard.services.common.file_locks import find_writers
from switchyard.services.engine.identity.broker import read_broker, require_same_system
from switchyard.services.engine.jobs.registered_types import learn_types
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.sql.postgres_servers import (
    MAX_OVERFLOW,
    POOL_SIZE,
)
from switchyard.services.engine.monitoring.check import (
    Diagnostic,
    Finding,
    certificate_remedy,
    failure,
    ok,
    warning,
)
from switchyard.services.engine.monitoring.checks.doctor_context import DoctorContext
from switchyard.services.engine.records.errors import (
    LedgerAuthError,
    LedgerConnectionLimit,
    LedgerError,
    LedgerFull,
    LedgerMisconfigured,
    LedgerMissing,
    LedgerReadOnly,
    LedgerUnavailable,
    ProgramOutdated,
    SchemaOutdated,
)

HOLDER = "doctor"
LOCKED_TEXTS = ("locked", "does not answer")
"""Texts in the error of a database that is there and held by another process."""
WAL_WRITE_LOCK = 120
"""Byte of the file `-shm` that whoever writes has locked (SQLite's "WAL-Index Format")."""
NO_PRIMARY_TEXT = "takes writes"
"""Text in the error where several servers are named and none of them is a primary that answers."""


async def ledger(context: DoctorContext) -> list[Diagnostic]:
    """Check that the ledger can be opened and written to, with a write that changes nothing."""
    try:
        # `fail_fast`: a ledger that is locked or away says so within two seconds.
        opened_ledger = await Ledger.open(context.settings.ledger_url, fail_fast=True)
    except LedgerError as error:
        return [report_unusable(context, error)]
    try:
        await opened_ledger.check()
        # A write that finds nothing to delete: a locked database can still be read.
        await opened_ledger.leases.release_lease(HOLDER, HOLDER)
        await opened_ledger.disk_space.require_room()
    except LedgerError as error:
        await opened_ledger.close()
        return [report_unusable(context, error)]
    context.ledger = opened_ledger
    await learn_types(context.registry, opened_ledger)
    return [ok("ledger", "reached, nothing holds it, and this program may use its tables")]


def report_unusable(context: DoctorContext, error: LedgerError) -> Diagnostic:
    """Return the diagnostic for a ledger that can't be used, with its remedy."""
    finding, remedy = _remedy(context, error)
    return failure("ledger", finding, str(error), remedy)


def _remedy(context: DoctorContext, error: LedgerError) -> tuple[Finding, str]:
    file = context.settings.ledger_url.partition(":///")[2]
    is_sqlite = context.settings.ledger_url.startswith("sqlite")
    match error:
        case LedgerMissing():
            remedy = "where there was one, correct its address, or restore it: docs/backup.md; "
            return Finding.LEDGER_TABLES, remedy + "only for a new system `jobctl db upgrade`"
        case ProgramOutdated():
            remedy = "start the release that has migrated them: docs/deploy.md#upgrading"
            return Finding.LEDGER_TABLES, remedy
        case SchemaOutdated():
            return Finding.LEDGER_TABLES, "`jobctl db upgrade`"
        case LedgerMisconfigured():
            return Finding.LEDGER_ADDRESS, "correct JOBS_DATABASE_URL"
        case LedgerAuthError():
            return (
                Finding.LEDGER_REFUSES,
                "correct user, password and database in JOBS_DATABASE_URL",
            )
        case LedgerConnectionLimit():
            maximum = POOL_SIZE + MAX_OVERFLOW
            return Finding.LEDGER_CROWDED, (
                "close idle connections, or raise `max_connections` of the server and restart it: "
                f"a process of Switchyard uses 2 or 3, {maximum} at most; to list the connections, "
                "connect as a superuser, for whom some are reserved: `psql -c 'SELECT usename, "
                "application_name, client_addr, count(*) FROM pg_stat_activity GROUP BY 1, 2, 3 "
                "ORDER BY 4 DESC'`"
            )
        case LedgerFull():
            return Finding.DISK_FULL, (
                f"make room there: `df -h {Path(file).parent}`"
                if is_sqlite
                else "make room where the database has its tables: `psql -c "
                "'SELECT spcname, pg_tablespace_location(oid) FROM pg_tablespace'` and `psql -c "
                "'SHOW data_directory'` say where, on its server"
            )
        case LedgerReadOnly() if is_sqlite:
            return Finding.LEDGER_READ_ONLY, (
                f"`findmnt -T {file}` says `ro` where its file system was mounted so, or became so "
                "by an error of its disk, of which `dmesg` tells: mend it, then `mount -o "
                f"remount,rw`; otherwise `ls -ld {Path(file).parent} {file}` shows whose it is: "
                "this user must be able to write both"
            )
        case LedgerReadOnly():
            return Finding.LEDGER_READ_ONLY, (
                "`psql -c 'SELECT pg_is_in_recovery()'` says `t` of a standby: correct "
                "JOBS_DATABASE_URL, or promote it; otherwise somebody has set it so, or a provider "
                "whose disk is nearly full: make room, then `psql -c 'SET "
                "default_transaction_read_only = off' -c 'ALTER DATABASE "
                f"{_quoted_database(context)} SET default_transaction_read_only = off'`"
            )
        case LedgerUnavailable() if any(each in str(error) for each in LOCKED_TEXTS):
            return Finding.LEDGER_LOCKED, (
                _advise_on_lock(Path(file))
                if is_sqlite
                else "where it answers `psql -c 'SELECT pid, state, query FROM pg_stat_activity'`, "
                "that shows who holds what; where it does not, the server is frozen or cut off: "
                "look at its host, and restart it"
            )
        case _ if NO_PRIMARY_TEXT in str(error):
            return Finding.LEDGER_AWAY, (
                "start the primary; where it is lost, promote the standby: `psql -c 'SELECT "
                "pg_promote()'` there; docs/cluster.md"
            )
        case _:
            return Finding.LEDGER_AWAY, (
                f"see that {file} can be written, and `df -h`: has the disk room?"
                if is_sqlite
                else certificate_remedy(error, "JOBS_DATABASE_URL")
                or "start the database, or correct JOBS_DATABASE_URL"
            )


def _advise_on_lock(file: Path) -> str:
    """Return the advice for a file of SQLite that another process has locked."""
    holders = find_writers(Path(f"{file}-shm"), first_byte=WAL_WRITE_LOCK) or find_writers(file)
    if not holders:
        return (
            f"`fuser -v {file}` shows who has it open: a backup or upgrade ends by itself, a "
            "process that was stopped goes on after `kill -CONT PID`; end only one that hangs, "
            "after its log was read"
        )
    holder = holders[0]
    name = f" ({holder.name})" if holder.name else ""
    if holder.is_stopped:
        return (
            f"process {holder.pid}{name} holds the lock, and was stopped by a signal: "
            f"`kill -CONT {holder.pid}` lets it go on; `ps -fp {holder.pid}` says what it is"
        )
    return (
        f"process {holder.pid}{name} holds the lock: `ps -fp {holder.pid}` says what it is; a "
        f"backup or upgrade ends by itself; `kill {holder.pid}` only where it hangs, after its log "
        "was read"
    )


def _quoted_database(context: DoctorContext) -> str:
    """Return the name of PostgreSQL's database, quoted for SQL."""
    name = urlsplit(context.settings.ledger_url).path.strip("/")
    return '"' + unquote(name).replace('"', '""') + '"'


BROKER_TOLERANCE = 5.0
"""Seconds by which the broker's clock may differ: it reports its time in whole seconds."""
CLOCK_FAILURE_OFFSET = 60.0
"""Seconds of difference beyond which it is a failure and not a warning."""


async def host_clock(context: DoctorContext) -> list[Diagnostic]:
    """Check this host's clock against the ledger's."""
    ahead = -context.need_ledger().clock.offset  # exactly 0 within the clock's tolerance
    if not ahead:
        return [ok("clock", "this host's clock agrees with the ledger's")]
    detail = (
        f"this host's clock is {_offset(ahead)} the ledger's; ages of jobs go by the ledger's, so "
        "none is lost by it, but logs and certificates go by this one"
    )
    return [_clock_differs(ahead, "clock", Finding.CLOCK_LEDGER, detail, "this host")]


async def broker_clock(context: DoctorContext) -> list[Diagnostic]:
    """Check the broker's clock against the ledger's, or this host's where the ledger can't be
    used."""
    broker_time = await context.need_management().time()
    # Against the ledger's clock, where there is a ledger: `host_clock` checks the host's.
    ahead = broker_time - context.now()
    if abs(ahead) <= BROKER_TOLERANCE:
        return [ok("broker clock", "the broker's clock agrees")]
    reference = "the ledger" if context.ledger else "this host"
    detail = f"the broker's clock is {_offset(ahead)} {reference}'s"
    return [
        _clock_differs(ahead, "broker clock", Finding.CLOCK_BROKER, detail, "the broker's host")
    ]


def _clock_differs(
    ahead: float, name: str, finding: Finding, detail: str, where: str
) -> Diagnostic:
    remedy = f"on {where}: `timedatectl set-ntp true`"
    diagnose = failure if abs(ahead) > CLOCK_FAILURE_OFFSET else warning
    return diagnose(name, finding, detail, remedy)


def _offset(ahead: float) -> str:
    return f"{duration_text(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'}"


async def system(context: DoctorContext) -> list[Diagnostic]:
    """Check that broker and ledger belong to the same system, and that the ledger is no old
    copy."""
    ledger = context.need_ledger()
    ledger_system = await ledger.system.system()
    try:
        mark = await read_broker(context.settings)
        await require_same_system(context.settings, ledger)
    except MarkUnreadable as error:
        remedy = "permit the user of JOBS_AMQP_URL to configure, read and write jobs.system"
        return [warning("system", Finding.SYSTEM_UNKNOWN, str(error), remedy)]
    except WrongSystem as error:
        remedy = "correct the address that is wrong: `jobctl system show` has both side by side"
        return [failure("system", Finding.SYSTEM_OTHER, str(error), remedy)]
    except BrokerUnavailable:
        return []  # the check of the broker reports it
    if mark is None:
        detail = (
            f"the broker is not marked as that of the system {ledger_system}: others could use it"
        )
        return [warning("system", Finding.SYSTEM_UNMARKED, detail, "`jobctl topology apply`")]
    return [ok("system", f"ledger and broker are of {ledger_system}")]
