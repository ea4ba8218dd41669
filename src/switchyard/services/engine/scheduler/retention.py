"""Removes what has ended and is old enough, in steps so small that nobody waits for them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

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
    MIN_REMOVED,
    MIN_REMOVED_ON_SERVER,
    SmallSteps,
    StepSize,
)

MIN_EXAMINED = 100
"""Rows that are examined at once, at least."""
MAX_READ = 200
"""Jobs that are read at once for the archive, at most; twenty at first, as each may have MiBs."""
PAUSE_RATIO = 10.0
"""Length of the pause after a pass, as a multiple of the time spent on rows that stay: the next
pass would read most of them again. Time for removed rows adds no pause, or a busy system would make
more jobs in it than a pass removes."""
ARCHIVE_INTERVAL = 3600.0
"""Seconds between looks where jobs are archived: fewer files, each with more jobs."""


@dataclass(slots=True)
class RetentionReport:
    """Rows that would be removed now, or were."""

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
        """Return the part of the jobs that were looked at and stay; 1 where there were none."""
        return 1 - self.rows["jobs"] / self.examined if self.examined else 1.0


class Pruner:
    """Removes ended things in passes. Safe to interrupt, to repeat, and beside everything else.

    With an archiver, jobs are removed once they stand in a complete file of the archive.
    """

    def __init__(
        self,
        ledger: Ledger,
        ages: RetentionAges,
        *,
        traffic: HotTraffic | None = None,
        removed: Counter[str] | None = None,
        archiver: JobArchiver | None = None,
    ) -> None:
        self._archive = ledger.archive
        self._archiver = archiver
        self._collected: list[str] = []
        """Jobs that go into the next file of the archive, in the order in which they are
        removed."""
        self._retention = ledger.retention
        self._ages = ages
        traffic = traffic or HotTraffic(ledger.workers)
        self._removed: Counter[str] = Counter() if removed is None else removed
        """Rows by table, since this process began."""
        is_here = ledger.core.database.dialect == "sqlite"
        smallest = MIN_REMOVED if is_here else MIN_REMOVED_ON_SERVER
        at_least = max(MIN_EXAMINED, smallest)
        self._examining = SmallSteps(traffic, StepSize(at_least, first=at_least))
        self._removing = SmallSteps(traffic, StepSize(smallest, first=at_least))
        reading = StepSize(first=MIN_REMOVED, largest=MAX_READ)
        self._reading = SmallSteps(traffic, reading)
        self._idle_until = float("-inf")

    @property
    def longest_transaction(self) -> float:
        """Return the seconds of the longest transaction so far."""
        return max(each.longest for each in self._sizes)

    @property
    def _sizes(self) -> list[StepSize]:
        return [each.size for each in (self._examining, self._removing, self._reading)]

    async def run(self) -> None:
        """Make a pass, unless the last one has cost so much that it is too soon; with an archiver,
        all passes that are needed. Raises LedgerError, StorageError."""
        began = time.monotonic()
        if began < self._idle_until:
            return
        report = await (self.make_pass() if self._archiver is None else self.prune())
        took = time.monotonic() - began
        least = 0.0 if self._archiver is None else ARCHIVE_INTERVAL
        rest = PAUSE_RATIO * took * report.kept_share
        self._idle_until = time.monotonic() + max(least, rest)
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
        report = await self.make_pass()
        last = report
        while last.rows["jobs"]:
            last = await self.make_pass()
            report.jobs += last.jobs
            report.rows += last.rows
            report.examined += last.examined
        report.kept = last.kept
        return report

    async def make_pass(self, *, dry_run: bool = False) -> RetentionReport:
        """Look at all that may be old enough once, and remove what nobody needs; with `dry_run`,
        only count it. Raises LedgerError, StorageError.

        The newest come first: what followed from a job is younger than it, and goes before it.
        """
        report = RetentionReport()
        if self._archiver is not None and not dry_run:
            self._collected = []
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
        place: tuple[float, str] | None = None
        while True:
            page = await self._examining.make(
                partial(self._examine, state, lane, place, expect_removals=dry_run)
            )
            report.kept += page.kept
            report.examined += len(page.removable) + page.kept.total()
            report.jobs += Counter({(state, name): n for name, n in page.types.items()})
            if dry_run:
                report.rows["jobs"] += len(page.removable)
            elif self._archiver is None:
                await self._remove_jobs(list(page.removable), report)
            else:
                self._collected += page.removable
                if len(self._collected) >= MAX_FILE_JOBS:
                    await self._archive_some(self._archiver, report)
            if page.after is None:
                break
            place = page.after
        while self._archiver is not None and self._collected:
            await self._archive_some(self._archiver, report)
        del report.kept[KeptFor.AGE]

    async def _examine(
        self,
        state: State,
        lane: str,
        place: tuple[float, str] | None,
        limit: int,
        *,
        expect_removals: bool,
    ) -> ExaminedJobs:
        return await self._retention.examine(
            self._ages, state, lane, before=place, limit=limit, expect_removals=expect_removals
        )

    async def _remove_jobs(
        self, job_ids: list[str], report: RetentionReport, archived: WrittenFile | None = None
    ) -> None:
        some: list[str] = []

        async def remove(limit: int) -> Removal:
            some[:] = job_ids[:limit]
            return await self._retention.remove_jobs(self._ages, some, archived=archived)

        while job_ids:
            if (await self._step(remove, report)).is_complete:
                del job_ids[: len(some)]

    async def _archive_some(self, archiver: JobArchiver, report: RetentionReport) -> None:
        """Write a file of collected jobs, as many as it takes, and remove them."""
        written, done = await archiver.write(
            self._collected, self._read_jobs, step=lambda: self._reading.size.rows
        )
        del self._collected[:done]
        if written is not None:
            await self._remove_archived(archiver, written, report)

    async def _remove_archived(
        self, archiver: JobArchiver, written: WrittenFile, report: RetentionReport
    ) -> None:
        await self._remove_jobs(list(written.versions), report, written)
        await archiver.settle(written)

    async def _read_jobs(self, job_ids: Sequence[str]) -> JobsToArchive:
        return await self._reading.make(lambda _: self._archive.read_jobs(job_ids))

    async def _prune_others(self, report: RetentionReport, *, dry_run: bool) -> None:
        """Letters without a job, operations and workers."""
        age = self._ages.states[State.DEAD]
        if age is not None:
            await self._prune_letters(age, report, dry_run=dry_run)
        if (age := self._ages.operations) is not None:
            if dry_run:
                number = await self._retention.count_old_operations(age)
                report.rows += Counter({"bulk_operations": number})
            else:
                await self._repeat(
                    lambda limit: self._retention.remove_operations(age, limit=limit), report
                )
        if dry_run:
            report.rows += Counter({"workers": await self._retention.count_old_workers()})
        else:
            await self._repeat(lambda limit: self._retention.remove_workers(limit=limit), report)

    async def _prune_letters(self, age: float, report: RetentionReport, *, dry_run: bool) -> None:
        place: tuple[float, str] | None = None

        async def remove(limit: int) -> Removal:
            nonlocal place
            removal, place = await self._retention.remove_letters(
                age, after=place, limit=limit, dry_run=dry_run
            )
            return removal

        while not (await self._step(remove, report, dry_run=dry_run)).is_complete:
            pass

    async def _repeat(
        self, remove: Callable[[int], Awaitable[Removal]], report: RetentionReport
    ) -> None:
        while not (await self._step(remove, report)).is_complete:
            pass

    async def _step(
        self,
        remove: Callable[[int], Awaitable[Removal]],
        report: RetentionReport,
        *,
        dry_run: bool = False,
    ) -> Removal:
        removal = await self._removing.make(remove)
        report.rows += removal.rows
        if not dry_run:
            self._removed.update(removal.rows)
        return removal
