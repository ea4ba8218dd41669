"""What happens in `jobctl demo`: jobs are published and watched, one is redriven, a worker is
killed, and the documents are searched."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from switchyard.broker.wording import pluralize
from switchyard.cli.base.errors import CommandFailed
from switchyard.cli.demo.demo_run import (
    DemoDocument,
    DemoRun,
    FoundPassage,
    KilledWorker,
    Overtaking,
    has_ended,
)
from switchyard.cli.demo.view import DemoView, demo_view
from switchyard.cli.system.local_system import System, worker_name
from switchyard.cli.system.supervisor import Supervisor

if TYPE_CHECKING:
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.publishing.publisher import JobPublisher
    from switchyard.services.engine.records.results import JobRecord

POLL_INTERVAL = 0.1
STUCK_TIMEOUT = 60.0
"""Seconds without any change after which the demo gives up and says where it stands."""
HOT_DOCUMENTS = 200
"""More documents than that go through the backfill lane, which holds ten times as many jobs."""
BACKFILL_JOBS = 40
MAX_BACKFILLS = 5
"""Backfills that are published in turn, where a busy machine lets each end between two looks."""
PAGE_SECONDS = 0.2
"""Seconds that each job of the backfill takes."""
BUSY_SLOTS = 3
"""Jobs of the backfill that run at once: a worker has five slots and keeps two for hot jobs."""
WORKER_KIND = "llm"
"""Worker kind of the demo's own jobs, and so of the worker that is killed."""
FAILURES = 2
FIXED_PARTS = 4
SAMPLE_QUERY = "why does the sea rise and fall twice a day"


async def run_demo(
    system: System, supervisor: Supervisor, directory: Path, files: list[Path]
) -> DemoRun:
    """Run the demo with workers that have been started."""
    from switchyard.broker.publish.publisher import Publisher
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.publishing.publisher import JobPublisher

    are_samples = not files
    if are_samples:
        from switchyard.services.pipeline.samples.articles import write_samples

        files = await asyncio.to_thread(write_samples, directory / "samples")
    ledger = await Ledger.open(system.settings.ledger_url, check=True)
    try:
        demo = DemoRun([DemoDocument(str(file.name)) for file in files], are_samples)
        async with Publisher(system.settings, name="demo") as publisher:
            fair_from = system.settings.fair_from
            jobs = JobPublisher(system.registry, ledger, publisher, fair_from=fair_from)
            with demo_view(system, ledger) as view:
                await _DemoRunner(system, supervisor, ledger, jobs, demo, view).run(files)
        await _collect(ledger, demo)
        return demo
    finally:
        await ledger.close()


@dataclass(slots=True)
class _DemoRunner:
    system: System
    supervisor: Supervisor
    ledger: Ledger
    publisher: JobPublisher
    demo: DemoRun
    view: DemoView
    flaky_id: str = ""
    strict_id: str = ""
    hot_id: str | None = None
    redrive_id: str | None = None
    search_id: str | None = None
    search: JobRecord | None = None
    search_is_over: bool = False
    announced: set[str] = field(default_factory=set)
    """Texts, and ids of documents' jobs, that were printed and are not printed again."""

    async def run(self, files: list[Path]) -> None:
        await self._publish(files)
        seen: object = None
        changed_at = time.monotonic()
        while not await self._advance():
            if (progress := self._progress()) != seen:
                seen, changed_at = progress, time.monotonic()
            self._check_alive(time.monotonic() - changed_at)
            await self.view.draw()
            await asyncio.sleep(POLL_INTERVAL)

    async def _publish(self, files: list[Path]) -> None:
        from switchyard.services.engine.publishing.preparing import JobRequest
        from switchyard.services.engine.publishing.publisher import Published

        await self.publisher.publish(JobRequest("hot.demo_load_index", {}, source="demo"))
        lane = "hot" if len(files) <= HOT_DOCUMENTS else "backfill"
        for document, file in zip(self.demo.documents, files, strict=True):
            path = str(file.absolute())
            try:
                path.encode()
            except UnicodeEncodeError:
                document.problem = "its name is not UTF-8: rename it"
                continue
            request = JobRequest(f"{lane}.ingest_document", {"path": path}, source="demo")
            outcome = (await self.publisher.publish_many([request]))[0]
            if isinstance(outcome, Published):
                document.job_id = outcome.job_id
            else:
                document.problem = str(outcome)
        await self._publish_backfill()
        flaky = JobRequest("hot.demo_flaky", {"failures": FAILURES}, source="demo")
        strict = JobRequest("hot.demo_strict", {"parts": 0}, source="demo")
        self.flaky_id = (await self.publisher.publish(flaky)).job_id
        self.strict_id = (await self.publisher.publish(strict)).job_id
        self.view.print_line(
            f"published {len(files)} documents, {BACKFILL_JOBS} jobs of bulk work (a backfill), a "
            "job that will fail twice, and one that can't succeed"
        )
        self._print_documents_done()

    async def _publish_backfill(self) -> None:
        from switchyard.services.engine.publishing.preparing import JobRequest
        from switchyard.services.engine.publishing.publisher import Published

        page = {"seconds": PAGE_SECONDS}
        pages = [JobRequest("backfill.demo_page", page, source="demo")] * BACKFILL_JOBS
        for outcome in await self.publisher.publish_many(pages):
            if not isinstance(outcome, Published):
                raise CommandFailed(f"a job of the backfill was not published: {outcome}")
            self.demo.backfill_ids.append(outcome.job_id)

    async def _advance(self) -> bool:
        """Read the states of all jobs, and take the next steps. Return True when all have ended."""
        reads = self.ledger.job_reads
        for document in self.demo.documents:
            if document.job_id is not None and document.job_id not in self.announced:
                document.jobs = await reads.pipeline(document.job_id)
                if document.is_over:
                    self.announced.add(document.job_id)
                    self._print_documents_done(f" ({document.name})")
        self.demo.flaky = await reads.get(self.flaky_id)
        self.demo.strict = await reads.get(self.strict_id)
        await self._follow_strict()
        await self._follow_backfill()
        await self._follow_search()
        return (
            self.search_is_over
            and all(
                job is not None and has_ended(job) for job in (self.demo.flaky, self.demo.strict)
            )
            and self.demo.redriven is not None
            and self.demo.backfill_done == len(self.demo.backfill_ids)
        )

    def _print_documents_done(self, last: str = "") -> None:
        demo = self.demo
        self.view.print_line(
            f"documents done: {demo.documents_done} of {len(demo.documents)}{last}"
        )

    # --- the job that dies ------------------------------------------------------------------

    async def _follow_strict(self) -> None:
        from switchyard.services.engine.records.states import State

        strict = self.demo.strict
        if self.redrive_id is None:
            if strict is not None and strict.state is State.DEAD:
                await self._redrive(strict)
        elif self.demo.redriven is None:
            await self._follow_redrive(self.redrive_id)
        elif strict is not None and has_ended(strict):
            self._print_once(f"demo_strict, sent again: {strict.state}")

    async def _redrive(self, dead: JobRecord) -> None:
        """Begin a redrive with another payload; the demo's scheduler runs it."""
        from switchyard.cli.base.common import current_user
        from switchyard.services.engine.dead.changes import Change
        from switchyard.services.engine.dead.letters import LetterFilter
        from switchyard.services.engine.redrive.spec import RedriveSpec, start_redrive

        self.demo.strict_error = dead.error_message or ""
        self.view.print_line(
            f"the job demo_strict failed for good ({self.demo.strict_error}): it is kept as a dead "
            "letter; sending it again with a corrected payload"
        )
        spec = RedriveSpec(
            LetterFilter(ids=frozenset([dead.id])),
            Change(values={"payload.parts": FIXED_PARTS}),
            remote=False,
        )
        operation = await start_redrive(
            self.ledger, spec, created_by=current_user(), reason="jobctl demo"
        )
        self.redrive_id = operation.id

    async def _follow_redrive(self, redrive_id: str) -> None:
        from switchyard.services.engine.bulk.control import require_bulk
        from switchyard.services.engine.records.bulk import ACTIVE
        from switchyard.services.engine.redrive.spec import RedriveProgress

        operation = await require_bulk(self.ledger, redrive_id)
        if operation.state not in ACTIVE:
            self.demo.redriven = RedriveProgress.from_operation(operation)
            self.demo.strict = await self.ledger.job_reads.get(self.strict_id)

    # --- the backfill, the hot job that overtakes it, and the worker that is killed ---------

    async def _follow_backfill(self) -> None:
        from switchyard.services.engine.records.states import State

        demo = self.demo
        states = await self.ledger.job_reads.states(demo.backfill_ids)
        running = frozenset(job_id for job_id, state in states.items() if state is State.RUNNING)
        demo.backfill_done = sum(state is State.SUCCEEDED for state in states.values())
        if self.hot_id is None:
            if len(running) >= BUSY_SLOTS:
                await self._publish_hot()
        elif demo.overtaking is None:
            waiting = sum(state is State.QUEUED for state in states.values())
            await self._follow_hot(self.hot_id, waiting)
        elif demo.killed is None:
            is_busy = len(running) >= BUSY_SLOTS
            if is_busy or (running and State.QUEUED not in states.values()):
                await self._kill_worker()
        else:
            demo.rerun = sum(
                states.get(job_id) is State.SUCCEEDED for job_id in demo.killed.job_ids
            )
            if demo.rerun == len(demo.killed.job_ids):
                jobs = pluralize(demo.rerun, "job")
                self._print_once(f"{jobs} of the killed process ran again and succeeded")
        if demo.backfill_done < len(demo.backfill_ids):
            return
        if demo.killed is None and len(demo.backfill_ids) < MAX_BACKFILLS * BACKFILL_JOBS:
            self.view.print_line("bulk work was done before a worker could be killed: once more")
            await self._publish_backfill()
        else:
            self._print_once(f"bulk work done: {demo.backfill_done} of {len(demo.backfill_ids)}")

    async def _publish_hot(self) -> None:
        from switchyard.services.engine.publishing.preparing import JobRequest

        hot = JobRequest("hot.demo_page", {"seconds": 0}, source="demo")
        self.hot_id = (await self.publisher.publish(hot)).job_id

    async def _follow_hot(self, job_id: str, waiting: int) -> None:
        hot = await self.ledger.job_reads.get(job_id)
        if hot is None or hot.started_at is None or not has_ended(hot):
            return
        wait_ms = (hot.started_at - hot.created_at) * 1000
        self.demo.overtaking = Overtaking(wait_ms, waiting)
        self.view.print_line(
            f"an urgent (hot) job overtook the bulk work: it waited {wait_ms:.0f} ms; "
            f"{pluralize(waiting, 'earlier job')} of bulk work still waiting"
        )

    async def _kill_worker(self) -> None:
        from switchyard.services.engine.records.states import State

        name = worker_name(WORKER_KIND, 1)
        self.supervisor.kill(name)
        # Read after the kill: before it, further jobs could still end or begin.
        states = await self.ledger.job_reads.states(self.demo.backfill_ids)
        cut_off = frozenset(job_id for job_id, state in states.items() if state is State.RUNNING)
        if cut_off:
            self.demo.killed = KilledWorker(name, cut_off)
            jobs = pluralize(len(cut_off), "job")
            self.view.print_line(f"killed the process {name} while it ran {jobs}")

    # --- the search -------------------------------------------------------------------------

    async def _follow_search(self) -> None:
        """Search as soon as all documents are done, and note what is found."""
        from switchyard.services.engine.publishing.preparing import JobRequest
        from switchyard.services.engine.records.states import State

        demo = self.demo
        if self.search_is_over or not all(document.is_over for document in demo.documents):
            return
        if self.search_id is None:
            demo.query = await self._find_query()
            if not demo.query:
                self.search_is_over = True
                return
            request = JobRequest("hot.demo_search", {"query": demo.query}, source="demo")
            self.search_id = (await self.publisher.publish(request)).job_id
        self.search = await self.ledger.job_reads.get(self.search_id)
        if self.search is None or not has_ended(self.search):
            return
        self.search_is_over = True
        if self.search.state is State.SUCCEEDED:
            found = (self.search.result or {})["hits"]
            demo.hits = [FoundPassage(**each) for each in found]
        else:
            demo.search_problem = self.search.error_message or str(self.search.state)

    async def _find_query(self) -> str:
        """Return what to search for; empty where no document was indexed."""
        for document in self.demo.documents:
            jobs = {job.job_type: job.id for job in document.jobs if has_ended(job)}
            if "link_content" not in jobs or "extract_text" not in jobs:
                continue
            if self.demo.are_samples:
                return SAMPLE_QUERY
            extracted = await self.ledger.job_reads.get(jobs["extract_text"])
            result = (extracted.result if extracted is not None else None) or {}
            return str(result.get("title", document.name))
        return ""

    # --- watching ---------------------------------------------------------------------------

    def _print_once(self, text: str) -> None:
        if text not in self.announced:
            self.announced.add(text)
            self.view.print_line(text)

    def _progress(self) -> tuple[int, ...]:
        """Return a value that changes whenever work was done; a job that starts over and over does
        not change it."""
        jobs = [job for document in self.demo.documents for job in document.jobs]
        others = (self.demo.flaky, self.demo.strict, self.search)
        jobs += [job for job in others if job is not None]
        return (
            self.demo.backfill_done,
            len(jobs),
            sum(has_ended(job) for job in jobs),
            sum(job.attempts + 1_000 * job.redrives for job in jobs),
        )

    def _check_alive(self, unchanged_for: float) -> None:
        killed = worker_name(WORKER_KIND, 1)
        for child in self.supervisor.newly_dead():
            if self.hot_id is None or child.name != killed:
                raise CommandFailed(
                    f"{child.name} ended before its time; the end of its log: {child.tail}"
                )
        self.supervisor.restart_dead()
        limit = STUCK_TIMEOUT
        if self.system.settings.llm_base_url is not None:
            limit += self.system.settings.llm_timeout
        if unchanged_for > limit:
            open_ones = [each.name for each in self.demo.documents if not each.is_over]
            raise CommandFailed(
                f"nothing has moved for {limit:.0f} s; not done: {', '.join(open_ones) or 'jobs'}; "
                "with --keep-data the logs stay"
            )


async def _collect(ledger: Ledger, demo: DemoRun) -> None:
    for document in demo.documents:
        for job in document.jobs:
            record = await ledger.job_reads.get(job.id)
            if record is not None:
                document.records[record.job_type] = record
    for lane in (await ledger.job_reads.counts()).values():
        for state, number in lane.items():
            demo.states[str(state)] = demo.states.get(str(state), 0) + number
