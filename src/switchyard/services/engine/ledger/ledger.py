"""The ledger: the SQL record of every job. Start here."""

from __future__ import annotations

from sqlalchemy import Connection, text

from switchyard.broker.closing import Closing
from switchyard.services.engine.ledger.alerts import ToldAlerts
from switchyard.services.engine.ledger.api_keys import ApiKeys
from switchyard.services.engine.ledger.bulk_jobs import BulkJobs
from switchyard.services.engine.ledger.bulk_operations import BulkOperations
from switchyard.services.engine.ledger.dead_groups import DeadGroups
from switchyard.services.engine.ledger.gauges import GaugeReads
from switchyard.services.engine.ledger.jobs import JobWrites
from switchyard.services.engine.ledger.joins import Joins
from switchyard.services.engine.ledger.leases import Leases
from switchyard.services.engine.ledger.limits import NamedLimits
from switchyard.services.engine.ledger.needed import NeededNames
from switchyard.services.engine.ledger.notes import JobNotes
from switchyard.services.engine.ledger.reads import JobReads
from switchyard.services.engine.ledger.redrives import Redrives
from switchyard.services.engine.ledger.room import RoomLook
from switchyard.services.engine.ledger.schedules import ScheduleBook
from switchyard.services.engine.ledger.short_ids import ShortIds
from switchyard.services.engine.ledger.sql.database import connect
from switchyard.services.engine.ledger.sql.tables import SCHEMA_REVISION
from switchyard.services.engine.ledger.sql.timed import (
    Observe,
    OnWait,
    TimedDatabase,
    WaitedForDatabase,
)
from switchyard.services.engine.ledger.system import Systems
from switchyard.services.engine.ledger.workers import Workers
from switchyard.services.engine.records.errors import LedgerMissing, SchemaOutdated
from switchyard.services.llm.ledger.llm_answers import LlmAnswers
from switchyard.services.llm.ledger.llm_batches import LlmBatches
from switchyard.services.llm.ledger.llm_slots import LlmSlots
from switchyard.services.llm.ledger.llm_spend import LlmSpend
from switchyard.services.pipeline.ledger.catalogue_answers import CatalogueAnswers
from switchyard.services.pipeline.ledger.crawls import CrawlBook
from switchyard.services.pipeline.ledger.document_classes import DocumentClasses
from switchyard.services.pipeline.ledger.documents import Documents
from switchyard.services.pipeline.ledger.graph_rankings import GraphRankings
from switchyard.services.pipeline.ledger.graph_reads import GraphReads
from switchyard.services.pipeline.ledger.graph_walks import GraphWalks
from switchyard.services.pipeline.ledger.graph_writes import GraphWrites
from switchyard.services.pipeline.ledger.old_crawls import OldCrawls


class Ledger(
    JobWrites,
    JobReads,
    ShortIds,
    JobNotes,
    Joins,
    ScheduleBook,
    DeadGroups,
    Redrives,
    Workers,
    Systems,
    Leases,
    Documents,
    DocumentClasses,
    ApiKeys,
    BulkOperations,
    BulkJobs,
    CatalogueAnswers,
    CrawlBook,
    OldCrawls,
    GaugeReads,
    LlmAnswers,
    LlmBatches,
    LlmSlots,
    LlmSpend,
    NamedLimits,
    ToldAlerts,
    NeededNames,
    GraphWrites,
    GraphReads,
    GraphWalks,
    GraphRankings,
    RoomLook,
    Closing,
):
    """One database, used by one event loop.

    `jobs` changes jobs, `reads` reads them, `notes` has what they say of themselves; joins,
    workers, leases, dead letters, redrives, documents and their classes, the knowledge graph
    (`graph_…`), bulk operations, their jobs, crawls, gauges, schedules, calls to language models,
    their answers and their cost, named limits, and keys of the API have a module each. Errors are
    those of `errors`.
    """

    @classmethod
    async def open(
        cls, url: str, *, check: bool = False, prompt: bool = False, on_wait: OnWait | None = None
    ) -> Ledger:
        """A ledger at that SQLAlchemy address (SQLite or PostgreSQL); connections are made when
        they are needed. With `check`, raises what `check` raises. A `prompt` one, for somebody who
        waits for an answer, says within two seconds that the database is locked or away; others
        wait for longer, and `on_wait` is told of it.

        Raises LedgerError for an address that is not to be used.
        """
        database = connect(url, prompt=prompt)
        ledger = cls(database if on_wait is None else WaitedForDatabase(database, on_wait))
        if check:
            try:
                await ledger.check()
            except BaseException:
                await ledger.close()
                raise
        return ledger

    def observe(self, observe: Observe) -> None:
        """Tell `observe` of every transaction from now on."""
        self._database = TimedDatabase(self._database, observe)

    async def check(self) -> None:
        """Raises LedgerUnavailable when the database is away, LedgerMissing when there are no
        tables in it, SchemaOutdated when they are of another version."""

        def work(connection: Connection) -> str | None:
            revision: str | None = connection.scalar(
                text("SELECT version_num FROM alembic_version")
            )
            return revision

        try:
            revision = await self._database.read(work)
        except LedgerMissing:
            raise
        except SchemaOutdated as error:
            raise LedgerMissing(self._database.where) from error
        if revision is None:
            raise LedgerMissing(self._database.where)
        if revision < SCHEMA_REVISION:
            raise SchemaOutdated("the ledger's tables are old: run `jobctl db upgrade`")
        if revision > SCHEMA_REVISION:
            raise SchemaOutdated(
                f"the ledger's tables are of version {revision}, this program knows "
                f"{SCHEMA_REVISION}: install a newer one"
            )

    @property
    def where(self) -> str:
        """The ledger's file, or its server and database, without credentials."""
        return self._database.where

    async def close(self) -> None:
        """Commit what waits, then close the connections."""
        await self._committer.close()
        await self._rooms.close()
        await self._database.close()
