"""Running a redrive: in passes through `jobs.dead`, by its rate, its canary and what becomes of it.

A letter that waits in a scan is held by it, and the broker does not let anybody hold one for long.
So a pass ends after a while, whatever it waits for, and the next one begins where things stand
then. What is to be sent stands in the ledger first: nothing is sent twice on purpose, and what died
again is left alone.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from broker.dead_queue import queue_depths, scanning
from broker.errors import LaneFull, PublishError
from broker.lanes import LANES, Lane
from broker.publisher import Publisher
from broker.settings import BrokerSettings
from services.bulk import BulkSession
from services.ledger import BulkState, Ledger, RedriveOutcome
from services.letters import DeadJob
from services.redrive import BATCH, turn_to_scan
from services.redrive_sending import Copy, Room, Sender, Tally
from services.redrive_spec import KIND, Progress, RedriveSpec
from services.redrive_stored import stored_letters
from services.registry import Registry

HOLD = 120.0
"""Seconds that a pass may hold letters: RabbitMQ closes a channel that holds one for 30 minutes,
and other redrives wait for their turn meanwhile."""
LOOK = 0.3
"""Seconds between looks at what became of letters, or whether a lane has room."""
NOTE_SECONDS = 0.5
"""Seconds between two notes of how far it has come."""
KEPT_NOTES = 20
LEAST_SAMPLE = 10
"""As if so many letters had ended, where fewer have: one failure of the first three is no sign."""
CLOCKS = 5.0
"""Seconds by which the clocks of hosts may differ: letters that died later than the redrive began
are not its own."""


class _Halted(Exception):
    """It stops itself; the text says why."""


class RedriveHandler:
    """Runs redrives; see `services.bulk`."""

    kind = KIND

    def __init__(
        self,
        settings: BrokerSettings,
        registry: Registry,
        ledger: Ledger,
        *,
        lanes: tuple[Lane, ...] = LANES,
        hold: float = HOLD,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._ledger = ledger
        self._lanes = lanes
        self._hold = hold

    async def run(self, session: BulkSession) -> None:
        """Go on until every letter that fits was sent, dropped, or can't be sent."""
        spec = RedriveSpec.from_json(session.operation.spec)
        run = _Run(session, spec, self._ledger)
        await run.begin()
        sender = Sender(
            self._registry,
            self._ledger,
            spec.change,
            lanes=self._lanes,
            operation_id=session.id,
            edited_by=session.operation.created_by,
        )
        url = self._settings.require_amqp_url()
        try:
            async with Publisher(self._settings, name=session.id) as publisher:
                while not run.has_enough:
                    async with self._source(url, spec, run) as letters, queue_depths(url) as depth:
                        one = _Pass(run, sender, publisher, Room(self._lanes, depth), self._hold)
                        if await one.go(letters):
                            break
            await run.drain()
        except _Halted as halted:
            await run.note_down(force=True)
            await session.finish(BulkState.HALTED, str(halted))
            return
        await run.note_down(force=True)
        await session.finish(note=run.last_word)

    def _source(
        self, url: str, spec: RedriveSpec, run: _Run
    ) -> AbstractAsyncContextManager[AsyncGenerator[DeadJob, None]]:
        return self._stored(url, spec, run) if spec.from_ledger else self._waiting(url, spec, run)

    @asynccontextmanager
    async def _waiting(
        self, url: str, spec: RedriveSpec, run: _Run
    ) -> AsyncIterator[AsyncGenerator[DeadJob, None]]:
        async def fitting() -> AsyncGenerator[DeadJob, None]:
            async for letter in scan.letters():
                if run.is_ours(letter) and spec.which.matches(letter, run.moment):
                    yield letter

        async with (
            turn_to_scan(self._ledger, run.wait_for_turn),
            scanning(url, profile=self._settings.profile) as scan,
            aclosing(fitting()) as letters,
        ):
            yield letters

    @asynccontextmanager
    async def _stored(
        self, url: str, spec: RedriveSpec, run: _Run
    ) -> AsyncIterator[AsyncGenerator[DeadJob, None]]:
        present = await self._present(url, run)

        async def fitting() -> AsyncGenerator[DeadJob, None]:
            async for letter in stored_letters(self._ledger, spec.which, run.moment, present):
                yield letter

        async with aclosing(fitting()) as letters:
            yield letters

    async def _present(self, url: str, run: _Run) -> frozenset[str]:
        """What `jobs.dead` has; the index learns what it has no longer."""
        began = time.time()
        async with (
            turn_to_scan(self._ledger, run.wait_for_turn),
            scanning(url, profile=self._settings.profile) as scan,
        ):
            present = frozenset([letter.id async for letter in scan.letters()])
        await self._ledger.drop_letters_but(present, began)
        return present


class _Run:
    """One process's work on one redrive: what it has done, and what it may do now."""

    def __init__(self, session: BulkSession, spec: RedriveSpec, ledger: Ledger) -> None:
        self.session = session
        self.spec = spec
        self.moment = datetime.fromtimestamp(session.operation.created_at, UTC)
        self.tally = Tally()
        """Of this pass."""
        self._ledger = ledger
        self._cursor: dict[str, Any] = dict(session.operation.cursor or {})
        self._before = Progress.of(session.operation)
        self._planned = 0
        self._known: set[str] = set()
        """Letters that were planned before a crash, and are sent (again) now."""
        self._ended: dict[RedriveOutcome | None, int] = {}
        self._looked = self._noted = 0.0

    async def begin(self) -> None:
        """Find out how far it is."""
        await self._look()
        self._planned = sum(self._ended.values())
        self._cursor.setdefault("baseline", [0, 0])
        if self._before.total is None and not self.spec.from_ledger:
            total = await self._ledger.count_dead(self.spec.which.for_index("waiting", self.moment))
            self._before = replace(self._before, total=min(total, self.spec.limit or total))
        await self.note_down(force=True)

    def is_ours(self, letter: DeadJob) -> bool:
        """Not one that died after the redrive began: while a cause lasts it would never end."""
        if self.spec.which.ids:
            return True
        try:
            died = datetime.fromisoformat(letter.certificate.dead_at)
            return (died - self.moment).total_seconds() <= CLOCKS
        except (ValueError, TypeError):
            return True

    @property
    def has_enough(self) -> bool:
        return self.spec.limit is not None and self._planned >= self.spec.limit

    async def wait_for_turn(self, seconds: float) -> None:
        """Another redrive goes through `jobs.dead`."""
        await self.session.move(BulkState.WAITING, "waits until another redrive or purge lets it")
        await self.session.sleep(seconds)

    async def not_sent_before(self, batch: Sequence[DeadJob]) -> list[DeadJob]:
        """Those of a batch that are to be sent: not what this redrive has sent, and died again."""
        planned = await self._ledger.planned_redrives(
            self.session.id, [letter.id for letter in batch]
        )
        self._known |= planned.keys()
        return [
            letter
            for letter in batch
            if letter.id not in planned or letter.redrives < planned[letter.id]
        ]

    async def allowance(self) -> int | None:
        """How many more may be sent now; None for any number. Raises _Halted."""
        limits = []
        if self.spec.limit is not None:
            limits.append(self.spec.limit - self._planned)
        max_open = self.session.operation.max_open
        if self.spec.canary is not None or max_open is not None or self.spec.halt_on is not None:
            await self.look()
            done, failed = self._since_baseline()
            if max_open is not None:
                limits.append(max_open - self._open)
            if self.spec.canary is not None and done - failed < self.spec.canary:
                # The canary: the first ones, or those after the last halt.
                limits.append(self.spec.canary - done - self._open)
                succeeded = f"{done - failed} of {self.spec.canary} have succeeded"
                await self.session.move(BulkState.RUNNING, f"canary: {succeeded}")
            else:
                await self.session.move(BulkState.RUNNING)
        return max(0, min(limits)) if limits else None

    async def look(self, *, now: bool = False) -> None:
        """See what became of what was sent. Raises _Halted."""
        if time.monotonic() - self._looked >= LOOK or now:
            await self._look()
        done, failed = self._since_baseline()
        if self.spec.canary is not None and failed and done <= self.spec.canary:
            raise self._halted(f"canary: {failed} of {done} failed again")
        if self.spec.halt_on is not None and failed >= self.spec.halt_on * max(done, LEAST_SAMPLE):
            raise self._halted(f"{failed} of {done} failed again ({failed / done:.0%})")

    def _halted(self, why: str) -> _Halted:
        # Whoever resumes it wants to try again, and not to hear the same again.
        self._cursor["baseline"] = [self._settled, self._ended.get(RedriveOutcome.FAILED, 0)]
        return _Halted(f"{why}; see `jobctl dead redrives show {self.session.id}`")

    async def drain(self) -> None:
        """Where what becomes of the letters matters, wait for it. Raises _Halted."""
        while True:
            await self.look(now=True)
            if not self._open or (self.spec.canary is None and self.spec.halt_on is None):
                return
            await self.session.move(BulkState.DRAINING, "all are sent; waits for their ends")
            await self.note_down()
            await self.session.sleep(LOOK)

    @property
    def last_word(self) -> str | None:
        failed = self._ended.get(RedriveOutcome.FAILED, 0)
        return f"{failed} failed again" if failed else None

    def planned(self, copies: Sequence[Copy], *, taken: bool = True) -> None:
        """These are about to be sent; or (not taken) the broker did not take them."""
        for copy in copies:
            if taken == (copy.letter.id not in self._known):
                self._planned += 1 if taken else -1
                self._ended[None] = self._open + (1 if taken else -1)
            if taken:
                self._known.add(copy.letter.id)
            else:
                self._known.discard(copy.letter.id)

    def next_pass(self) -> None:
        """What could not be sent is counted anew in each pass; what was dropped is gone."""
        self._before = replace(
            self._before, dropped=self._before.dropped + self.tally.dropped, notes=self._notes()
        )
        self.tally = Tally()

    async def note_down(self, *, force: bool = False) -> None:
        """Note how far it is, now and then. Ends the run when it is not to go on."""
        if not force and time.monotonic() - self._noted < NOTE_SECONDS:
            return self.session.check()
        self._noted = time.monotonic()
        progress = replace(
            self._before,
            redriven=self._planned,
            dropped=self._before.dropped + self.tally.dropped,
            invalid=self.tally.invalid,
            succeeded=self._ended.get(RedriveOutcome.SUCCEEDED, 0),
            failed=self._ended.get(RedriveOutcome.FAILED, 0),
            undone=self._ended.get(RedriveOutcome.UNDONE, 0),
            unfinished=self._open,
            notes=self._notes(),
        )
        await self.session.checkpoint(cursor=self._cursor, counts=progress.to_json())
        return None

    def _notes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._before.notes, *self.tally.notes)))[:KEPT_NOTES]

    async def _look(self) -> None:
        self._ended = dict(await self._ledger.settle_redriven(self.session.id))
        self._looked = time.monotonic()

    @property
    def _open(self) -> int:
        return self._ended.get(None, 0)

    @property
    def _settled(self) -> int:
        return self._ended.get(RedriveOutcome.SUCCEEDED, 0) + self._ended.get(
            RedriveOutcome.FAILED, 0
        )

    def _since_baseline(self) -> tuple[int, int]:
        """Ended, and failed of these, since the beginning or the last halt."""
        settled, failed = self._cursor["baseline"]
        return self._settled - settled, self._ended.get(RedriveOutcome.FAILED, 0) - failed


class _Pass:
    """Once through the letters, or until the time is over for which they may be held."""

    def __init__(
        self, run: _Run, sender: Sender, publisher: Publisher, room: Room, hold: float
    ) -> None:
        self._run = run
        self._session = run.session
        self._sender = sender
        self._publisher = publisher
        self._room = room
        self._ends_at = time.monotonic() + hold
        self._held: dict[str, deque[Copy]] = {}
        """Copies for which their queue had no room, oldest first."""

    async def go(self, letters: AsyncGenerator[DeadJob, None]) -> bool:
        """True when every letter was seen and nothing waits."""
        self._run.next_pass()
        await self._session.move(BulkState.RUNNING)
        batch: list[DeadJob] = []
        async for letter in letters:
            batch.append(letter)
            if len(batch) >= BATCH:
                await self._send_all(batch)
                batch = []
                if self._is_over or self._run.has_enough:
                    return self._run.has_enough and not self._held
        await self._send_all(batch)
        await self._wait_for_room()
        return not self._held and not (self._is_over and batch and not self._run.has_enough)

    @property
    def _is_over(self) -> bool:
        return time.monotonic() >= self._ends_at

    async def _send_all(self, batch: Sequence[DeadJob]) -> None:
        """Send a batch as it may be sent, waiting for outcomes and by the rate."""
        left = await self._run.not_sent_before(batch)
        waiting = deque(await self._sender.prepare(left, self._run.tally, drop=True))
        while waiting and not self._is_over and not self._run.has_enough:
            allowed = await self._run.allowance()
            if allowed == 0:
                await self._run.note_down()
                await self._session.sleep(LOOK)
                continue
            wanted = min(len(waiting), allowed or BATCH)
            number = await self._session.take_slots(wanted)
            await self._send([waiting.popleft() for _ in range(number)])
            await self._run.note_down()

    async def _send(self, copies: Sequence[Copy]) -> None:
        """Send those for which there is room, hold the others."""
        self._room.look_again()
        fitting: list[Copy] = []
        for copy in copies:
            held = self._held.get(copy.queue)
            if held or not await self._room.take(copy.queue):
                self._held.setdefault(copy.queue, deque()).append(copy)
            else:
                fitting.append(copy)
        await self._send_now(fitting)

    async def _send_now(self, copies: Sequence[Copy]) -> None:
        if not copies:
            return
        await self._sender.plan(copies)
        self._run.planned(copies)
        refused = await self._sender.send(self._publisher, copies, self._run.tally)
        not_taken = [copy for copy, error in refused if not _may_have_been_taken(error)]
        await self._sender.forget([copy.letter.id for copy in not_taken])
        self._run.planned(not_taken, taken=False)
        for copy, error in reversed(refused):
            if not isinstance(error, LaneFull):
                raise error  # tried again by the runner, from where it is then
            if not error.dead_lettered:
                self._held.setdefault(copy.queue, deque()).appendleft(copy)

    async def _wait_for_room(self) -> None:
        while self._held and not self._is_over and not self._run.has_enough:
            queues = ", ".join(sorted(self._held))
            await self._run.note_down()
            await self._session.move(BulkState.WAITING, f"waits for room in {queues}")
            await self._session.sleep(LOOK)
            self._room.look_again()
            for queue in list(self._held):
                await self._send_held(queue)
        await self._session.move(BulkState.RUNNING)

    async def _send_held(self, queue: str) -> None:
        held = self._held[queue]
        fitting: list[Copy] = []
        allowed = await self._run.allowance()
        most = BATCH if allowed is None else min(BATCH, allowed)
        while held and len(fitting) < most and await self._room.take(queue):
            fitting.append(held.popleft())
        if not held:
            del self._held[queue]
        await self._send_now(fitting)


def _may_have_been_taken(error: PublishError) -> bool:
    return bool(getattr(error, "maybe_accepted", False))
