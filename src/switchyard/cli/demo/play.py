"""What happens in `jobctl demo`: jobs are published, watched, and one is redriven."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from switchyard.cli.base.errors import CommandFailed
from switchyard.cli.demo.story import DemoDocument, DemoRun, has_ended
from switchyard.cli.demo.view import View, demo_view
from switchyard.cli.system.local_system import System, start_all
from switchyard.cli.system.supervisor import Supervisor

if TYPE_CHECKING:
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.publishing.publisher import JobPublisher
    from switchyard.services.engine.records.results import JobRecord

POLL_INTERVAL = 0.4
STUCK_TIMEOUT = 60.0
"""Without any change for so long, the demo gives up and says where it stands."""
STOP_TIMEOUT = 15.0
HOT_DOCUMENTS = 200
"""More documents than that go through the backfill lane, which holds ten times as many jobs."""
FAILURES = 2
FIXED_PARTS = 4
SAMPLE_QUERY = "why does the sea rise and fall twice a day"
HITS = 3


async def play(system: System, directory: Path, files: list[Path]) -> DemoRun:
    """Run the demo; at its end, and also when it is interrupted, all workers have stopped."""
    from switchyard.broker.publish.publisher import Publisher
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.publishing.publisher import JobPublisher

    are_samples = not files
    if are_samples:
        from switchyard.services.pipeline.samples.articles import write_samples

        files = await asyncio.to_thread(write_samples, directory / "samples")
    supervisor = Supervisor(directory / "logs", system.environment)
    ledger = await Ledger.open(system.settings.ledger_url, check=True)
    try:
        start_all(supervisor, system.registry)
        story = DemoRun([DemoDocument(str(file.name)) for file in files], are_samples)
        async with Publisher(system.settings, name="demo") as publisher:
            fair_from = system.settings.fair_from
            jobs = JobPublisher(system.registry, ledger, publisher, fair_from=fair_from)
            with demo_view(system, ledger, story) as view:
                await _DemoRunner(system, supervisor, ledger, jobs, story, view).run(files)
        await _collect(ledger, story)
        await _search(system, story)
        return story
    finally:
        await ledger.close()
        supervisor.stop(STOP_TIMEOUT)


@dataclass(slots=True)
class _DemoRunner:
    system: System
    supervisor: Supervisor
    ledger: Ledger
    publisher: JobPublisher
    story: DemoRun
    view: View
    flaky_id: str = ""
    strict_id: str = ""
    redrive_id: str | None = None

    async def run(self, files: list[Path]) -> None:
        await self._publish(files)
        seen: object = None
        changed_at = time.monotonic()
        while not await self._look():
            if (progress := self._progress()) != seen:
                seen, changed_at = progress, time.monotonic()
            self._check_alive(time.monotonic() - changed_at)
            await self.view.show()
            await asyncio.sleep(POLL_INTERVAL)
        await self.view.show()

    async def _publish(self, files: list[Path]) -> None:
        from switchyard.services.engine.publishing.preparing import JobRequest
        from switchyard.services.engine.publishing.publisher import Published

        lane = "hot" if len(files) <= HOT_DOCUMENTS else "backfill"
        for document, file in zip(self.story.documents, files, strict=True):
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
        flaky = JobRequest("hot.demo_flaky", {"failures": FAILURES}, source="demo")
        strict = JobRequest("hot.demo_strict", {"parts": 0}, source="demo")
        self.flaky_id = (await self.publisher.publish(flaky)).job_id
        self.strict_id = (await self.publisher.publish(strict)).job_id
        self.view.tell(
            f"Published {len(files)} documents, a job that fails {FAILURES} times, and one that "
            "dies"
        )

    async def _look(self) -> bool:
        """Read how things stand; True when all has ended."""
        from switchyard.services.engine.records.states import State

        for document in self.story.documents:
            if document.job_id is not None and not document.is_over:
                document.jobs = await self.ledger.job_reads.pipeline(document.job_id)
        self.story.flaky = await self.ledger.job_reads.get(self.flaky_id)
        strict = self.story.strict = await self.ledger.job_reads.get(self.strict_id)
        if self.redrive_id is None and strict is not None and strict.state is State.DEAD:
            await self._redrive(strict)
        if self.redrive_id is not None and self.story.redriven is None:
            await self._look_at_redrive(self.redrive_id)
        return (
            all(document.is_over for document in self.story.documents)
            and all(
                job is not None and has_ended(job) for job in (self.story.flaky, self.story.strict)
            )
            and self.story.redriven is not None
        )

    async def _redrive(self, dead: JobRecord) -> None:
        """Begin a redrive with another payload; the demo's scheduler runs it."""
        from switchyard.cli.base.common import current_user
        from switchyard.services.engine.dead.changes import Change
        from switchyard.services.engine.dead.letters import LetterFilter
        from switchyard.services.engine.redrive.spec import RedriveSpec, start_redrive

        self.story.death = f"{dead.reason}: {dead.error_message}"
        self.view.tell(f"demo_strict died ({self.story.death}); redriving it with another payload")
        spec = RedriveSpec(
            LetterFilter(ids=frozenset([dead.id])),
            Change(values={"payload.parts": FIXED_PARTS}),
            remote=False,
        )
        operation = await start_redrive(
            self.ledger, spec, created_by=current_user(), reason="jobctl demo"
        )
        self.redrive_id = operation.id

    async def _look_at_redrive(self, redrive_id: str) -> None:
        from switchyard.services.engine.bulk.control import require_bulk
        from switchyard.services.engine.records.bulk import ACTIVE
        from switchyard.services.engine.redrive.spec import RedriveProgress

        operation = await require_bulk(self.ledger, redrive_id)
        if operation.state not in ACTIVE:
            self.story.redriven = RedriveProgress.from_operation(operation)
            self.story.strict = await self.ledger.job_reads.get(self.strict_id)

    def _progress(self) -> tuple[int, int, int]:
        """Changes when something has been done. A job that starts over and over does not."""
        jobs = [job for document in self.story.documents for job in document.jobs]
        jobs += [job for job in (self.story.flaky, self.story.strict) if job is not None]
        return (
            len(jobs),
            sum(has_ended(job) for job in jobs),
            sum(job.attempts + 1_000 * job.redrives for job in jobs),
        )

    def _check_alive(self, unchanged_for: float) -> None:
        for child in self.supervisor.dead():
            raise CommandFailed(f"{child.name} ended before its time; its last words: {child.tail}")
        limit = STUCK_TIMEOUT
        if self.system.settings.llm_base_url is not None:
            limit += self.system.settings.llm_timeout
        if unchanged_for > limit:
            open_ones = [each.name for each in self.story.documents if not each.is_over]
            raise CommandFailed(
                f"nothing has moved for {limit:.0f} s; not done: {', '.join(open_ones) or 'jobs'}; "
                "with --keep-data the logs stay"
            )


async def _collect(ledger: Ledger, story: DemoRun) -> None:
    for document in story.documents:
        for job in document.jobs:
            record = await ledger.job_reads.get(job.id)
            if record is not None:
                document.records[record.job_type] = record
    for lane in (await ledger.job_reads.counts()).values():
        for state, number in lane.items():
            story.states[str(state)] = story.states.get(str(state), 0) + number


async def _search(system: System, story: DemoRun) -> None:
    from switchyard.services.common.errors import PermanentError, RetryableError
    from switchyard.services.pipeline.index.chunk_search import search
    from switchyard.services.pipeline.index.modes import Mode
    from switchyard.services.pipeline.index.opening import open_index

    titles = [
        str((document.records["extract_text"].result or {}).get("title", document.name))
        for document in story.documents
        if {"extract_text", "link_content"} <= document.records.keys()
    ]
    if not titles:
        return  # nothing was indexed
    story.query = SAMPLE_QUERY if story.are_samples else titles[0]
    try:
        async with open_index(system.settings) as index, index.searched() as (table, embedder):
            story.hits = await search(
                table, embedder, story.query, HITS, mode=Mode.HYBRID, per_document=1
            )
    except (PermanentError, RetryableError) as error:
        story.search_problem = str(error)
