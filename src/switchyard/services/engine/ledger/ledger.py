"""The ledger: the SQL record of every job. Start here."""

from __future__ import annotations

from switchyard.broker.closeable import AsyncCloseable
from switchyard.services.engine.ledger.api_keys import ApiKeyRepository
from switchyard.services.engine.ledger.archive import ArchiveRepository
from switchyard.services.engine.ledger.bulk_jobs import BulkJobRepository
from switchyard.services.engine.ledger.bulk_operations import BulkRepository
from switchyard.services.engine.ledger.dead_groups import DeadLetterRepository
from switchyard.services.engine.ledger.due_work import DueWorkReads
from switchyard.services.engine.ledger.gauges import GaugeReads
from switchyard.services.engine.ledger.job_actions import JobActionRepository
from switchyard.services.engine.ledger.job_reads import JobReads
from switchyard.services.engine.ledger.job_types import JobTypeRepository
from switchyard.services.engine.ledger.jobs import JobRepository
from switchyard.services.engine.ledger.joins import JoinRepository
from switchyard.services.engine.ledger.lane_history import LaneHistory
from switchyard.services.engine.ledger.leases import LeaseRepository
from switchyard.services.engine.ledger.limits import LimitRepository
from switchyard.services.engine.ledger.pauses import PauseRepository
from switchyard.services.engine.ledger.progress import ProgressRepository
from switchyard.services.engine.ledger.redrives import RedriveRepository
from switchyard.services.engine.ledger.referenced_keys import ReferencedKeys
from switchyard.services.engine.ledger.retention import RetentionRepository
from switchyard.services.engine.ledger.schedules import ScheduleRepository
from switchyard.services.engine.ledger.sent_alerts import SentAlerts
from switchyard.services.engine.ledger.short_ids import ShortIds
from switchyard.services.engine.ledger.sql.clock import Clock
from switchyard.services.engine.ledger.sql.database import connect
from switchyard.services.engine.ledger.sql.instrumentation import (
    Observe,
    OnWait,
    SlowTransactionNotifier,
    TimedDatabase,
)
from switchyard.services.engine.ledger.sql.repository import LedgerCore
from switchyard.services.engine.ledger.sql.tables_version import read_tables_version
from switchyard.services.engine.ledger.system import DiskSpaceProbe, SystemRepository
from switchyard.services.engine.ledger.table_sizes import TableSizes
from switchyard.services.engine.ledger.workers import WorkerRepository
from switchyard.services.engine.records.errors import LedgerMissing, SchemaOutdated


class Ledger(AsyncCloseable):
    """One database, used by one event loop: a repository for each subject.

    Wings above have repositories of their own in the same database, made from this one
    (`LlmLedger`, `PipelineLedger`). Errors are those of `records.errors`.
    """

    def __init__(self, core: LedgerCore) -> None:
        self.core = core
        self.jobs = JobRepository(core)
        self.job_reads = JobReads(core)
        self.due_work = DueWorkReads(core)
        self.job_actions = JobActionRepository(core)
        self.progress = ProgressRepository(core)
        self.pauses = PauseRepository(core)
        self.joins = JoinRepository(core)
        self.schedules = ScheduleRepository(core)
        self.dead_letters = DeadLetterRepository(core)
        self.redrives = RedriveRepository(core)
        self.workers = WorkerRepository(core)
        self.job_types = JobTypeRepository(core)
        self.system = SystemRepository(core)
        self.leases = LeaseRepository(core)
        self.api_keys = ApiKeyRepository(core)
        self.bulk = BulkRepository(core)
        self.bulk_jobs = BulkJobRepository(core)
        self.gauges = GaugeReads(core)
        self.lane_history = LaneHistory(core)
        self.limits = LimitRepository(core)
        self.alerts = SentAlerts(core)
        self.retention = RetentionRepository(core)
        self.archive = ArchiveRepository(core)
        self.table_sizes = TableSizes(core)
        self.references = ReferencedKeys(core)
        self.short_ids = ShortIds(core)
        self.disk_space = DiskSpaceProbe(core)

    @property
    def clock(self) -> Clock:
        """The ledger's time, by which all hosts decide about ages and due times."""
        return self.core.clock

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        check: bool = False,
        fail_fast: bool = False,
        on_wait: OnWait | None = None,
    ) -> Ledger:
        """Return a ledger at that SQLAlchemy address (SQLite or PostgreSQL); connections are made
        when they are needed. With `check`, raises what `check` raises. With `fail_fast`, for
        callers whom somebody waits for, a locked or unreachable database raises LedgerUnavailable
        within two seconds. Otherwise the ledger waits for longer, and calls `on_wait` meanwhile.

        Raises LedgerError for an address that is not to be used.
        """
        database = await connect(url, fail_fast=fail_fast)
        if on_wait is not None:
            database = SlowTransactionNotifier(database, on_wait)
        ledger = cls(LedgerCore(database))
        if check:
            try:
                await ledger.check()
            except BaseException:
                await ledger.close()
                raise
        return ledger

    def observe(self, observe: Observe) -> None:
        """Call `observe` for every transaction from now on."""
        self.core.database = TimedDatabase(self.core.database, observe)

    async def check(self) -> None:
        """Check that the tables are there, and of this version or of a newer one that this program
        may still use. Raises LedgerUnavailable, LedgerMissing, SchemaOutdated, ProgramOutdated."""
        try:
            version = await self.core.database.read(read_tables_version)
        except LedgerMissing:
            raise
        except SchemaOutdated as error:
            raise LedgerMissing(self.core.database.location) from error
        if version is None:
            raise LedgerMissing(self.core.database.location)
        version.require_usable()

    @property
    def location(self) -> str:
        """The ledger's file, or its server and database, without credentials."""
        return self.core.database.location

    async def close(self) -> None:
        """Commit waiting operations, then close the connections."""
        await self.core.close()
