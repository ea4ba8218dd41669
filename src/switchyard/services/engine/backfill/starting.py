"""Check, preview, start and cancel backfills, for API and command line."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import PurePath

from switchyard.services.common.files.storage import Storage
from switchyard.services.common.settings import Settings
from switchyard.services.engine.backfill.costs import CostEstimate, estimate_cost
from switchyard.services.engine.backfill.sources import (
    SOURCE_TIMEOUT,
    InvalidBackfill,
    Item,
    Source,
    SourceContext,
    SourceFailed,
    Sources,
    SourceUnreachable,
    Unusable,
)
from switchyard.services.engine.backfill.spec import (
    KIND,
    BackfillSpec,
    Plan,
    job_or_reason,
    then_id_of,
)
from switchyard.services.engine.bulk.control import cancel as cancel_bulk
from switchyard.services.engine.bulk.control import check_limits, new_bulk_id, require_bulk
from switchyard.services.engine.bulk.session import LEASE_RENEW_INTERVAL
from switchyard.services.engine.jobs.registered_types import learn_missing_type
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.publishing.preparing import InvalidJob, check_notify_url
from switchyard.services.engine.records.bulk import BulkOperation
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.requests import NewJob
from switchyard.services.engine.records.results import Cancelled
from switchyard.services.engine.records.states import WAITING, State
from switchyard.services.engine.wings import source_modules

PREVIEW_ITEMS = 20
"""Items that are made into jobs, as a trial, before a backfill starts."""
CANCEL_BATCH_SIZE = 1_000


@dataclass(frozen=True, slots=True)
class Preview:
    """Preview of a backfill."""

    title: str
    total: int | None
    """Items in all; None where the source does not know."""
    jobs: tuple[NewJob, ...]
    """The first jobs."""
    unusable: tuple[str, ...]
    """Reasons for which some of the first items can't be made into jobs."""
    cost: CostEstimate | None = None
    """Estimated cost of its calls of language models; None where its jobs make none."""


@dataclass(frozen=True, slots=True)
class Backfills:
    """Starts and cancels backfills."""

    settings: Settings
    registry: Registry
    ledger: Ledger
    storage: Storage
    sources: Sources
    max_wait: float = SOURCE_TIMEOUT
    """Seconds to wait for a turn to send a request to a source's server."""

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        registry: Registry,
        ledger: Ledger,
        modules: Iterable[str] | None = None,
        *,
        max_wait: float = SOURCE_TIMEOUT,
    ) -> Backfills:
        """Return a service with the sources of JOBS_MODULES and `modules`. Raises
        InvalidBackfill."""
        sources = Sources.load([*settings.modules, *(modules or ())])
        storage = Storage(settings.files_url)
        return cls(settings, registry, ledger, storage, sources, max_wait)

    def open_source(self, spec: BackfillSpec, started_at: float) -> Source:
        """Return the source of a spec. Raises InvalidBackfill."""
        context = SourceContext(self.settings, self.ledger, self.storage, started_at, self.max_wait)
        return self.sources.open(spec.source, spec.options, context, remote=spec.remote)

    async def _make_plan(self, operation_id: str, spec: BackfillSpec) -> Plan:
        """Make the plan of a spec. Raises InvalidBackfill, LedgerError."""
        for name in (spec.job_type, spec.then):
            if name is not None:
                await learn_missing_type(self.registry, self.ledger, name.rpartition(".")[2])
        ids = await self.ledger.system.job_ids()
        source = self.sources.get(spec.source)
        return Plan.from_spec(operation_id, spec, source, self.registry, ids)

    async def preview(self, spec: BackfillSpec) -> Preview:
        """Read the first items and make their jobs, without publishing them.

        Raises InvalidBackfill, also when none of the first items can be made into a job, or there
        are none; SourceUnreachable.
        """
        source = self.open_source(spec, self.ledger.clock.time())
        plan = await self._make_plan("preview", spec)
        if spec.until is not None and spec.until.timestamp() <= self.ledger.clock.time():
            raise InvalidBackfill("its end lies in the past")
        jobs: list[NewJob] = []
        unusable: list[str] = []
        try:
            total = await source.total()
            async with aclosing(source.items(None)) as items:  # type: ignore[type-var]
                async for each in items:
                    _add_job(plan, each, jobs, unusable)
                    if len(jobs) + len(unusable) >= PREVIEW_ITEMS:
                        break
        except SourceFailed as error:
            raise InvalidBackfill(str(error)) from error
        except (SourceUnreachable, InvalidBackfill, LedgerError):
            raise
        except Exception as error:
            if type(source).__module__ in source_modules():
                raise
            # Not a built-in source: its author needs to know where the error is.
            raise InvalidBackfill(
                f"source {spec.source} raised {_describe_error(error)}"
            ) from error
        if not jobs:
            reason_text = (
                f"none of its first items can be used: {unusable[0]}" if unusable else "no items"
            )
            raise InvalidBackfill(f"{source.title}: {reason_text}")
        cost = estimate_cost(self.settings, plan.job_type, jobs, total)
        return Preview(source.title, total, tuple(jobs), tuple(unusable), cost)

    async def start(
        self,
        spec: BackfillSpec,
        *,
        created_by: str,
        reason: str | None = None,
        rate: float | None = None,
        max_open: int | None = None,
        budget: float | None = None,
    ) -> BulkOperation:
        """Check and record a backfill; a scheduler runs it. Raises InvalidLimits, InvalidBackfill,
        SourceUnreachable, LedgerUnavailable."""
        check_limits({"rate": rate, "max_open": max_open, "budget": budget})
        if budget is not None and self.settings.llm_prices is None:
            raise InvalidBackfill("a budget needs prices: set JOBS_LLM_PRICES")
        if spec.notify_url is not None:
            try:
                check_notify_url(spec.notify_url, self.settings)
            except InvalidJob as error:
                raise InvalidBackfill(str(error)) from error
        preview = await self.preview(spec)
        operation_id = new_bulk_id(KIND)
        plan = await self._make_plan(operation_id, spec)
        return await self.ledger.bulk.create_bulk(
            operation_id,
            kind=KIND,
            title=preview.title,
            spec=spec.as_record(self.registry, plan.job_type),
            created_by=created_by,
            reason=reason,
            rate=rate,
            max_open=max_open,
            counts={"total": preview.total},
            notice=plan.notice,
            budget=budget,
        )

    async def cancel(self, operation_id: str, *, jobs: bool) -> int:
        """Cancel a backfill; with `jobs` also those of its jobs, and of the jobs that followed from
        them, that have not begun. Returns how many jobs were cancelled. After a crash, it may be
        called again. Raises UnknownBulkOperation, BulkConflict, LedgerUnavailable."""
        operation = await cancel_bulk(self.ledger, operation_id, kinds=[KIND])
        has_then = operation.spec.get("then") is not None
        if not (jobs or has_then):
            return 0
        while await self._is_held(operation_id):  # noqa: ASYNC110 - another process holds it
            await asyncio.sleep(LEASE_RENEW_INTERVAL)
        if has_then:  # a backfill that is cancelled is not followed by its `then` job
            then_id = then_id_of(await self.ledger.system.job_ids(), operation_id)
            await self.ledger.jobs.cancel(then_id, self.ledger.clock.time())
        if not jobs:
            return 0
        cancelled = 0
        waiting = WAITING | {State.JOINING}
        while ids := await self.ledger.bulk_jobs.bulk_jobs(
            operation_id, waiting, limit=CANCEL_BATCH_SIZE
        ):
            now = self.ledger.clock.time()
            results = await asyncio.gather(*(self.ledger.jobs.cancel(each, now) for each in ids))
            cancelled += sum(isinstance(result, Cancelled) for result in results)
        return cancelled

    async def _is_held(self, operation_id: str) -> bool:
        operation = await require_bulk(self.ledger, operation_id)
        return (
            operation.holder is not None and (operation.lease_until or 0) > self.ledger.clock.time()
        )


def _describe_error(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({PurePath(frame.filename).name}, line {frame.lineno})"


def _add_job(plan: Plan, item: Item | Unusable, jobs: list[NewJob], unusable: list[str]) -> None:
    job = job_or_reason(plan, item)
    if isinstance(job, str):
        unusable.append(job)
    else:
        jobs.append(job)
