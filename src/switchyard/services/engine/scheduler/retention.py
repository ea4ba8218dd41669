"""Remove old rows of ended jobs and operations, in steps so small that nobody waits for them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import structlog

from switchyard.services.engine.archive.archiver import MAX_FILE_JOBS, JobArchiver
from switchyard.services.engine.bulk.hot_traffic import HotTraffic
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.archive import JobsToArchive, WrittenFile
from switchyard.services.engine.records.retention import (
    ExaminedJobs,
    KeptFor,
    Removal,
    RetentionAges,
)
from switchyard.services.engine.records.states import FINISHED, State
from switchyard.services.engine.scheduler.small_steps import (
    MIN_STEP,
    MIN_STEP_ON_SERVER,
    SmallSteps,
    StepSize,
)

MIN_EXAMINED = 100
"""Rows that are examined at once, at least."""
MAX_READ = 200
"""Jobs that are read at once for the archive, at most; MIN_STEP at first, as each may have MiBs."""
PAUSE_RATIO = 10.0
"""Length of the pause after a pass, as a multiple of the time spent on rows that stay: the next
pass reads most of them again. Time for removed rows adds no pause: a busy system could make more
jobs in it than a pass removes."""
ARCHIVE_INTERVAL = 3600.0
"""Seconds between passes that archive jobs: the archive gets fewer files, each with more jobs."""


@dataclass(slots=True)
class RetentionReport:
    """Rows that were removed or, in a dry run, would be."""

    jobs: Counter[tuple[State, str]] = field(default_factory=Counter)
    """Jobs by state and type."""
    kept: Counter[KeptFor] = field(default_factory=Counter)
    """Jobs that are old enough but needed, by reason; those that are too young are not counted."""
    rows: Counter[str] = field(default_factory=Counter)
    """Rows by table."""
    examined: int = 0
    """Jobs that were examined, also those that are too young."""

    @property
    def kept_share(self) -> float:
        """Return the share of the examined jobs that stay; 1 where none was examined."""
        return 1 - self.rows["jobs"] / self.examined if self.examined else 1.0


class Pruner:
    """Removes old rows in passes, which may be interrupted and repeated at any time.

    With an archiver, jobs are removed once they are in a complete file of the archive.
    """

    def __init__(
        self,
        ledger: Ledger,
        ages: RetentionAges,
        *,
        removed: Counter[str] | None = None,
        archiver: JobArchiver | None = None,
    ) -> None:
        self._archive = ledger.archive
        self._archiver = archiver
        self._to_archive: list[str] = []
        """Ids of the jobs for the next file of the archive, in the order of their removal."""
        self._retention = ledger.retention
        self._ages = ages
        traffic = HotTraffic(ledger.workers)
        self._removed: Counter[str] = Counter() if removed is None else removed
        """Rows removed since this process began, by table."""
        is_sqlite = ledger.core.database.dialect == "sqlite"
        min_step = MIN_STEP if is_sqlite else MIN_STEP_ON_SERVER
        min_examined = max(MIN_EXAMINED, min_step)
        self._examining = SmallSteps(traffic, StepSize(min_examined, first=min_examined))
        self._removing = SmallSteps(traffic, StepSize(min_step, first=min_examined))
        self._reading = SmallSteps(traffic, StepSize(first=MIN_STEP, largest=MAX_READ))
        self._next_pass_at = float("-inf")
        """Monotonic time before which no pass is made."""

    @property
    def longest_transaction(self) -> float:
        """Return the seconds of the longest transaction so far."""
        return max(each.longest for each in self._sizes)

    @property
    def _sizes(self) -> list[StepSize]:
        return [each.size for each in (self._examining, self._removing, self._reading)]

    async def run(self) -> None:
        """Make a pass, or with an archiver all that are needed; none during the pause after the
        last. Raises LedgerError, StorageError."""
        began = time.monotonic()
        if began < self._next_pass_at:
            return
        report = await (self.make_pass() if self._archiver is None else self.prune())
        took = time.monotonic() - began
        min_pause = 0.0 if self._archiver is None else ARCHIVE_INTERVAL
        pause = max(min_pause, PAUSE_RATIO * took * report.kept_share)
        self._next_pass_at = time.monotonic() + pause
        if report.rows:
            structlog.get_logger("scheduler").info(
                "old records removed",
                rows=dict(sorted(report.rows.items())),
                seconds=round(took, 3),
                longest_transaction=round(self.longest_transaction, 4),
                transactions=sum(each.steps for each in self._sizes),
                over_50_ms=sum(each.too_long for each in self._sizes),
            )

    async def prune(self) -> RetentionReport:
        """Make passes until nothing is left to be removed. Raises LedgerError, StorageError."""
        total = latest = await self.make_pass()
        while latest.rows["jobs"]:
            latest = await self.make_pass()
            total.jobs += latest.jobs
            total.rows += latest.rows
            total.examined += latest.examined
        total.kept = latest.kept
        return total

    async def make_pass(self, *, dry_run: bool = False) -> RetentionReport:
        """Examine everything that may be old enough, and remove what nobody needs; with `dry_run`,
        only count it. Raises LedgerError, StorageError.

        The newest jobs come first: a job can go once those that followed from it are gone.
        """
        report = RetentionReport()
        if self._archiver is not None and not dry_run:
            self._to_archive = []
            if (written := await self._archiver.find_interrupted()) is not None:
                await self._remove_archived(self._archiver, written, report)
        for state in sorted(FINISHED):
            if self._ages.shortest(state) is not None:
                for lane in await self._retention.ended_lanes(state):
                    await self._prune_lane(state, lane, report, dry_run=dry_run)
        await self._prune_others(report, dry_run=dry_run)
        return report

    async def _prune_lane(
        self, state: State, lane: str, report: RetentionReport, *, dry_run: bool
    ) -> None:
        position: tuple[float, str] | None = None

        async def examine(limit: int) -> ExaminedJobs:
            return await self._retention.examine(
                self._ages, state, lane, before=position, limit=limit, expect_removals=dry_run
            )

        while True:
            page = await self._examining.run_step(examine)
            report.kept += page.kept
            report.examined += len(page.removable) + page.kept.total()
            report.jobs += Counter({(state, name): n for name, n in page.types.items()})
            if dry_run:
                report.rows["jobs"] += len(page.removable)
            elif self._archiver is None:
                await self._remove_jobs(list(page.removable), report)
            else:
                self._to_archive += page.removable
                if len(self._to_archive) >= MAX_FILE_JOBS:
                    await self._archive_some(self._archiver, report)
            if page.after is None:
                break
            position = page.after
        while self._archiver is not None and self._to_archive:
            await self._archive_some(self._archiver, report)
        del report.kept[KeptFor.AGE]

    async def _remove_jobs(
        self, job_ids: list[str], report: RetentionReport, archived: WrittenFile | None = None
    ) -> None:
        batch: list[str] = []

        async def remove(limit: int) -> Removal:
            batch[:] = job_ids[:limit]
            return await self._retention.remove_jobs(self._ages, batch, archived=archived)

        while job_ids:
            if (await self._remove_step(remove, report)).is_complete:
                del job_ids[: len(batch)]

    async def _archive_some(self, archiver: JobArchiver, report: RetentionReport) -> None:
        """Write a file of the collected jobs, as many as it holds, and remove these."""
        written, handled = await archiver.write(
            self._to_archive, self._read_jobs, batch_size=lambda: self._reading.size.rows
        )
        del self._to_archive[:handled]
        if written is not None:
            await self._remove_archived(archiver, written, report)

    async def _remove_archived(
        self, archiver: JobArchiver, written: WrittenFile, report: RetentionReport
    ) -> None:
        await self._remove_jobs(list(written.versions), report, written)
        await archiver.settle(written)

    async def _read_jobs(self, job_ids: Sequence[str]) -> JobsToArchive:
        return await self._reading.run_step(lambda _: self._archive.read_jobs(job_ids))

    async def _prune_others(self, report: RetentionReport, *, dry_run: bool) -> None:
        """Remove letters without a job, operations and workers, or count them."""
        if (age := self._ages.states[State.DEAD]) is not None:
            await self._prune_letters(age, report, dry_run=dry_run)
        if (age := self._ages.operations) is not None:
            if dry_run:
                number = await self._retention.count_old_operations(age)
                report.rows += Counter({"bulk_operations": number})
            else:
                await self._remove_all(
                    lambda limit: self._retention.remove_operations(age, limit=limit), report
                )
        if dry_run:
            report.rows += Counter({"workers": await self._retention.count_old_workers()})
        else:
            await self._remove_all(
                lambda limit: self._retention.remove_workers(limit=limit), report
            )

    async def _prune_letters(self, age: float, report: RetentionReport, *, dry_run: bool) -> None:
        position: tuple[float, str] | None = None

        async def remove(limit: int) -> Removal:
            nonlocal position
            removal, position = await self._retention.remove_letters(
                age, after=position, limit=limit, dry_run=dry_run
            )
            return removal

        await self._remove_all(remove, report, dry_run=dry_run)

    async def _remove_all(
        self,
        remove: Callable[[int], Awaitable[Removal]],
        report: RetentionReport,
        *,
        dry_run: bool = False,
    ) -> None:
        while not (await self._remove_step(remove, report, dry_run=dry_run)).is_complete:
            pass

    async def _remove_step(
        self,
        remove: Callable[[int], Awaitable[Removal]],
        report: RetentionReport,
        *,
        dry_run: bool = False,
    ) -> Removal:
        removal = await self._removing.run_step(remove)
        report.rows += removal.rows
        if not dry_run:
            self._removed.update(removal.rows)
        return removal
