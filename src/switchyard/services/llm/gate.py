"""The gate before the servers: never more calls under way than the fleet's limit.

The limit, the pauses and the calls under way are in the ledger, so they hold for all processes. The
queue is here and not in the server: those who wait get their turn by urgency. Each process looks
for room on behalf of its most urgent call alone.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from itertools import count, groupby

import structlog

from switchyard.broker.lanes import HOT, LANES
from switchyard.services.common.instance_ids import new_instance_id
from switchyard.services.common.settings import LlmServer, Settings
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.leases import renewing
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.llm.completion_reader import Timing
from switchyard.services.llm.concurrency_policy import (
    AdaptivePolicy,
    Bounds,
    CallSample,
    ConcurrencyPolicy,
    Ended,
    Fixed,
    ServerPace,
    StepPolicy,
    observe,
)
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.llm_errors import LlmSaturated
from switchyard.services.llm.records.llm_servers import (
    BRIEF_PAUSE,
    TRIAL_AFTER_FAILURES,
    LlmServerReport,
    LlmServerState,
    ServerPaused,
    SlotsFull,
)
from switchyard.services.llm.records.llm_spend import LlmCall, NoBudgetLeft, Reservation

SLOT_TTL = 15.0
"""Seconds after which the slots of a process that has died are free again."""
SLOT_POLL_INTERVAL = 0.1
"""Seconds between looks for room that another process may have made; about, so that processes do
not all look at once."""
SHORT_PAUSE, LONG_PAUSE = 1.0, 30.0
"""Seconds for which a server is left alone that does not answer: doubled from one to the other."""
MAX_PAUSE = 3600.0
"""Seconds that a server may ask for."""

UNADAPTED_START, UNADAPTED_LEAST = 16, 5
"""First and least limit of the rules `steps` and `fixed`, unless they are set."""

RULES: dict[str, ConcurrencyPolicy] = {
    "adaptive": AdaptivePolicy(),
    "steps": StepPolicy(),
    "fixed": Fixed(),
}
"""By JOBS_LLM_PACING."""


@dataclass(frozen=True, slots=True, order=True)
class Urgency:
    """Sort key of waiting calls: the least comes first."""

    lane: int = 0
    """The lane's rank; 0 is the most urgent."""
    negated_priority: int = 0

    @classmethod
    def from_priority(cls, lane: str, priority: int) -> Urgency:
        ranks = {each.name: rank for rank, each in enumerate(LANES)}
        return cls(ranks.get(lane, len(ranks)), -priority)

    @property
    def is_hot(self) -> bool:
        return LANES[min(self.lane, len(LANES) - 1)] is HOT


@dataclass(frozen=True, slots=True)
class Admission:
    """A slot at a server: the call may be made."""

    server: LlmServer
    slot: str
    learned: str = ""
    """How the server takes parameters, as far as the fleet knows (`Parameters.with_learned`)."""


@dataclass(frozen=True, slots=True)
class BudgetRefusal:
    """A server has room, and no budget has enough for the call there: it has no slot."""

    server: LlmServer
    no_budget: NoBudgetLeft


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The outcome of a call, as far as it concerns its server."""

    ended: Ended
    timing: Timing | None = None
    is_failure: bool = False
    """The server did not answer, or broke down."""
    pause: float = 0.0
    """Seconds for which it asks to be left alone."""
    reason: str = ""
    learned: str = ""
    """What it has shown of how the server takes parameters; empty where that is nothing new."""


@dataclass(frozen=True, slots=True)
class FleetCall:
    """A call that has ended, among those of the whole fleet."""

    outcome: CallOutcome
    in_flight: int
    """Calls under way when it ended, itself included."""
    is_awaited: bool
    """Whether others wait for room."""


class LlmGate:
    """The gate of one process; open it with `LlmGate.open`."""

    def __init__(
        self,
        ledger: Ledger,
        servers: Sequence[LlmServer],
        rule: ConcurrencyPolicy,
        bounds: Mapping[str, Bounds],
    ) -> None:
        self._slots = LlmLedger(ledger).slots
        self._servers = sorted(servers, key=lambda each: each.order)
        self._rule = rule
        self._bounds = bounds
        self._holder = new_instance_id()
        self._held: dict[str, str] = {}
        self._numbers = count(1)
        self._waiting: list[tuple[Urgency, int, asyncio.Event]] = []
        self._dice = random.Random()
        self._log = structlog.get_logger("llm")

    @classmethod
    @asynccontextmanager
    async def open(
        cls, settings: Settings, ledger: Ledger, *, rule: ConcurrencyPolicy | None = None
    ) -> AsyncIterator[LlmGate]:
        """Open the gate of the settings' servers; its slots are given back at the end."""
        bounds = {each.name: bounds_of(settings, each) for each in settings.llm_servers}
        gate = cls(ledger, settings.llm_servers, rule or RULES[settings.llm_pacing], bounds)
        try:
            async with renewing("model slots", SLOT_TTL, gate._renew):
                yield gate
        finally:
            try:
                await gate._slots.release_llm_slots(gate._holder)
            except LedgerError as error:  # they run out by themselves
                gate._log.warning("model slots not released", error=str(error))

    async def enter(
        self,
        urgency: Urgency,
        *,
        timeout: float,
        without: Collection[str] = (),
        reservation: Callable[[LlmServer], Reservation | None] = lambda _: None,
    ) -> Admission | BudgetRefusal:
        """Wait for room at a server that is not in `without`, and reserve what the call may cost
        there. Raises LlmSaturated when there is none within `timeout` seconds or when all servers
        are paused for long, and LedgerError."""
        deadline = time.monotonic() + timeout
        with self._queue_place(urgency) as (number, turn):
            while True:
                turn.clear()
                left = deadline - time.monotonic()
                if self._waiting[0][1] != number:
                    await self._wait_for_turn(turn, left)
                    continue
                slot_answer = await self._take_slot(urgency, without, reservation)
                if isinstance(slot_answer, Admission | BudgetRefusal):
                    return slot_answer
                if isinstance(slot_answer, ServerPaused):
                    if slot_answer.seconds > min(BRIEF_PAUSE, left):
                        raise LlmSaturated(
                            f"the model server is paused: {slot_answer.reason}",
                            after=slot_answer.seconds,
                        )
                    await self._wait_for_turn(
                        turn, left, slot_answer.seconds * self._dice.uniform(1.0, 1.05)
                    )
                else:
                    await self._wait_for_turn(
                        turn, left, SLOT_POLL_INTERVAL * self._dice.uniform(0.5, 1.5)
                    )

    async def leave(
        self,
        admission: Admission,
        outcome: CallOutcome | None,
        calls: Sequence[LlmCall] = (),
    ) -> bool:
        """Give the slot back, with what the call has taught; None where it was broken off. `calls`
        are what it has come to. Returns whether it failed because the server had too many calls: it
        gets fewer from now on."""
        self._held.pop(admission.slot, None)
        bounds, rule = self._bounds[admission.server.name], self._rule
        dice = self._dice.uniform(1.0, 1.1)
        is_awaited = bool(self._waiting)
        is_overload = False

        def change(state: LlmServerState, in_flight: int, now: float) -> LlmServerState:
            nonlocal is_overload
            assert outcome is not None
            call = FleetCall(outcome, in_flight, is_awaited)
            is_overload = shows_overload(state, call, now, rule=rule, bounds=bounds)
            return state_after_call(state, call, now, rule=rule, bounds=bounds, dice=dice)

        try:
            await self._slots.end_llm_slot(
                admission.server.name, admission.slot, None if outcome is None else change, calls
            )
        except LedgerError as error:
            # The answer that was paid for counts more; the slot runs out by itself, and what was
            # set aside is counted as spent in two hours.
            self._log.warning("model slot not released, nor call cost recorded", error=str(error))
        self._wake_first()
        return is_overload

    # --- those who wait -----------------------------------------------------------------------

    @contextmanager
    def _queue_place(self, urgency: Urgency) -> Iterator[tuple[int, asyncio.Event]]:
        place = (urgency, next(self._numbers), asyncio.Event())
        heapq.heappush(self._waiting, place)
        try:
            yield place[1], place[2]
        finally:
            self._waiting.remove(place)
            heapq.heapify(self._waiting)
            self._wake_first()

    def _wake_first(self) -> None:
        if self._waiting:
            self._waiting[0][2].set()

    async def _wait_for_turn(
        self, turn: asyncio.Event, left: float, most: float | None = None
    ) -> None:
        """Return when it is this one's turn to look, or after `most` seconds. Raises LlmSaturated
        when its time is over."""
        if left <= 0:
            raise LlmSaturated(
                "the model servers get as many requests as they may", after=SHORT_PAUSE
            )
        try:
            async with asyncio.timeout(left if most is None else min(left, most)):
                await turn.wait()
        except TimeoutError:
            return

    async def _take_slot(
        self,
        urgency: Urgency,
        without: Collection[str],
        reservation: Callable[[LlmServer], Reservation | None],
    ) -> Admission | BudgetRefusal | SlotsFull | ServerPaused:
        """Take a slot at a server of the lowest order that is not paused; servers with more weight
        are tried first more often."""
        pauses: list[ServerPaused] = []
        usable = [each for each in self._servers if each.name not in without]
        for _, group in groupby(usable, key=lambda each: each.order):
            full: SlotsFull | None = None
            for server in self._shuffle(group):
                slot = f"{self._holder}/{next(self._numbers)}"
                bounds = self._bounds[server.name]
                reserved = reservation(server)
                try:
                    answer = await self._slots.take_llm_slot(
                        server.name,
                        slot,
                        self._holder,
                        ttl=SLOT_TTL,
                        is_hot=urgency.is_hot,
                        first=bounds.within(bounds.start),
                        most=bounds.most,
                        reservation=reserved,
                    )
                except asyncio.CancelledError:
                    # Both may be there all the same: the slot for seconds, the reserve for hours.
                    calls = [] if reserved is None else [reserved.freed]
                    await asyncio.shield(self.leave(Admission(server, slot), None, calls))
                    raise
                if isinstance(answer, SlotsFull):
                    full = answer
                elif isinstance(answer, NoBudgetLeft):
                    return BudgetRefusal(server, answer)
                elif isinstance(answer, ServerPaused):
                    pauses.append(self._with_server_name(server, answer))
                else:
                    self._held[slot] = server.name
                    return Admission(server, slot, answer.learned)
            if full is not None:
                return full
        return min(pauses, key=lambda each: each.seconds)

    def _with_server_name(self, server: LlmServer, paused: ServerPaused) -> ServerPaused:
        """Add the server's name to the reason, where there are several servers."""
        if len(self._servers) == 1:
            return paused
        return replace(paused, reason=f"{server.name}: {paused.reason}")

    def _shuffle(self, servers: Iterator[LlmServer]) -> list[LlmServer]:
        # Efraimidis and Spirakis: a weighted order without repetition.
        return sorted(servers, key=lambda each: -(self._dice.random() ** (1 / each.weight)))

    async def _renew(self) -> None:
        held = dict(self._held)
        if not held:
            return
        for slot in await self._slots.renew_llm_slots(held, self._holder, SLOT_TTL):
            if slot not in self._held:  # given back meanwhile
                await self._slots.end_llm_slot(held[slot], slot, None)


def all_servers(called: Iterable[LlmServerReport], settings: Settings) -> list[LlmServerReport]:
    """Return the servers that were called, and those of the settings that nobody has called yet:
    one that only helps out is shown before it is needed."""
    reports = list(called)
    known = {each.name for each in reports}
    new = [
        LlmServerReport(each.name, LlmServerState(bounds_of(settings, each).start), 0, 0.0)
        for each in settings.model_servers
        if each.name not in known
    ]
    return sorted((*reports, *new), key=lambda each: each.name)


def calls_allowed(report: LlmServerReport, most: Mapping[str, int]) -> int:
    """Return how many calls a server gets at once. `most`: by name, what the settings allow each of
    their servers."""
    state = report.state
    return state.calls(most[report.name]) if report.name in most else int(state.allowed)


def bounds_of(settings: Settings, server: LlmServer) -> Bounds:
    """Return the bounds of the calls that a server gets at once."""
    most = settings.most_calls(server)
    start, least = settings.llm_concurrency, settings.llm_concurrency_min
    if settings.llm_pacing != "adaptive":  # these do not find a small server, nor a large one
        set_names = settings.model_fields_set
        start = start if "llm_concurrency" in set_names else max(start, UNADAPTED_START)
        least = least if "llm_concurrency_min" in set_names else min(start, UNADAPTED_LEAST)
    return Bounds(min(start, most), min(least, most), most)


def shows_overload(
    state: LlmServerState,
    call: FleetCall,
    now: float,
    *,
    rule: ConcurrencyPolicy,
    bounds: Bounds,
) -> bool:
    """Return whether a call failed because the server had too many, and gets fewer now: it cuts
    more than a tenth of the answers, and the rule has not come to its least limit."""
    if call.outcome.ended is not Ended.BROKEN or call.in_flight < 2 or not rule.minds_broken:
        return False
    pace = ServerPace.load(state.pace, bounds, now)
    window = pace.window.plus(CallSample(Ended.BROKEN, call.in_flight))
    return window.is_refusing and int(pace.limit) > bounds.least


def state_after_call(
    state: LlmServerState,
    call: FleetCall,
    now: float,
    *,
    rule: ConcurrencyPolicy,
    bounds: Bounds,
    dice: float,
) -> LlmServerState:
    """Return the state of a server after a call. `dice`, from 1 to 1.1, keeps processes apart."""
    outcome, timing = call.outcome, call.outcome.timing or Timing(0.0, 0.0)
    sample = CallSample(
        outcome.ended,
        call.in_flight,
        timing.seconds,
        timing.work,
        timing.first_token,
        timing.per_token,
        call.is_awaited,
    )
    pace = observe(ServerPace.load(state.pace, bounds, now), sample, rule, bounds, now)
    failures = state.failures
    if outcome.ended is Ended.ANSWERED:
        failures = 0
    elif shows_overload(state, call, now, rule=rule, bounds=bounds):
        pass  # it answers, if it gets fewer calls
    elif outcome.is_failure and state.paused_until <= now:
        failures += 1  # what was under way when the pause began says nothing new
    pause, reason = min(outcome.pause, MAX_PAUSE), outcome.reason
    if failures >= TRIAL_AFTER_FAILURES and failures > state.failures:
        pause = max(pause, min(SHORT_PAUSE * 2.0 ** (failures - TRIAL_AFTER_FAILURES), LONG_PAUSE))
    until = now + pause * dice if pause else 0.0
    if until <= state.paused_until:
        until, reason = state.paused_until, state.pause_reason or ""
    return replace(
        state,
        limit=pace.limit,
        pace=pace.dump(),
        failures=failures,
        paused_until=until,
        pause_reason=reason or None,
        learned=outcome.learned or state.learned,
        learned_at=now if outcome.learned else state.learned_at,
    )
