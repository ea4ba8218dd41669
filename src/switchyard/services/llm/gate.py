"""Admit calls to the model servers: never more at once than each server's limit for the whole
fleet.

The limit, the pauses and the calls under way are in the ledger, so they hold for all processes.
Calls wait here and not in the server, so that they get their turn by urgency. Each process asks for
a slot only for its most urgent call.
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
from dataclasses import dataclass, field, replace
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
    CallEnd,
    CallSample,
    ConcurrencyPolicy,
    FixedPolicy,
    PolicyState,
    StepPolicy,
    observe,
)
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.llm_errors import LlmSaturated
from switchyard.services.llm.records.llm_servers import (
    BRIEF_PAUSE,
    MAX_PAUSE,
    PAUSE_SPREAD,
    SLOT_TTL,
    TRIAL_AFTER_FAILURES,
    AnswerClaim,
    AnswerClaimRequest,
    CacheHit,
    LeaseAcquired,
    LeaseHeld,
    LlmServerReport,
    LlmServerState,
    ServerPaused,
    SlotsFull,
)
from switchyard.services.llm.records.llm_spend import LlmCall, NoBudgetLeft, Reservation

SLOT_POLL_INTERVAL = 0.1
"""Mean seconds between looks for a slot that another process may have freed. The time varies, so
that processes do not all look at once."""
SHORT_PAUSE, LONG_PAUSE = 1.0, 30.0
"""Seconds of the first and the longest pause of a server that does not answer; each is twice the
one before."""

NON_ADAPTIVE_START, NON_ADAPTIVE_MIN = 16, 5
"""First and lowest limit of the policies `steps` and `fixed`, where the settings give none."""

POLICIES: dict[str, ConcurrencyPolicy] = {
    "adaptive": AdaptivePolicy(),
    "steps": StepPolicy(),
    "fixed": FixedPolicy(),
}
"""Policies by the value of JOBS_LLM_PACING."""


@dataclass(frozen=True, slots=True, order=True)
class Urgency:
    """Sort key of waiting calls: the lowest comes first."""

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
    """A server has a free slot, but one of the call's budgets has too little left for it."""

    server: LlmServer
    no_budget: NoBudgetLeft


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The outcome of a call, as far as it concerns its server."""

    end: CallEnd
    timing: Timing | None = None
    is_failure: bool = False
    """The server did not answer, or broke down."""
    pause: float = 0.0
    """Seconds for which the server asks to be left alone."""
    reason: str = ""
    learned: str = ""
    """How the server takes parameters, as JSON, if the call has shown anything new; else empty."""


@dataclass(frozen=True, slots=True)
class FleetCall:
    """A call that has ended, with the calls of the whole fleet at that moment."""

    outcome: CallOutcome
    in_flight: int
    """Calls under way when it ended, itself included."""
    others_wait: bool
    """Whether other calls wait for a slot."""


@dataclass(slots=True)
class _ChangeAfterCall:
    """Computes a server's next state when a call has ended."""

    outcome: CallOutcome
    policy: ConcurrencyPolicy
    bounds: Bounds
    others_wait: bool
    """Whether other calls wait for a slot."""
    jitter: float
    is_overload: bool = False
    """Whether the call failed because the server had too many calls; set when the change is
    made."""

    def __call__(self, state: LlmServerState, in_flight: int, now: float) -> LlmServerState:
        call = FleetCall(self.outcome, in_flight, self.others_wait)
        policy, bounds = self.policy, self.bounds
        self.is_overload = shows_overload(state, call, now, policy=policy, bounds=bounds)
        return state_after_call(state, call, now, policy=policy, bounds=bounds, jitter=self.jitter)


@dataclass(frozen=True, slots=True, order=True)
class _WaitingCall:
    """A call that waits for its turn; calls of equal urgency in the order in which they came."""

    urgency: Urgency
    number: int
    turn: asyncio.Event = field(default_factory=asyncio.Event, compare=False)
    """Set when the call is the first in the queue, or a slot of this process is free again."""


class LlmGate:
    """The gate of one process; open it with `LlmGate.open`."""

    def __init__(
        self,
        ledger: Ledger,
        servers: Sequence[LlmServer],
        policy: ConcurrencyPolicy,
        bounds: Mapping[str, Bounds],
    ) -> None:
        self._slots = LlmLedger(ledger).slots
        self._servers = sorted(servers, key=lambda each: each.order)
        self._policy = policy
        self._bounds = bounds
        self._holder = new_instance_id()
        self._held: dict[str, str] = {}
        self._numbers = count(1)
        self._waiting: list[_WaitingCall] = []
        self._random = random.Random()
        self._log = structlog.get_logger("llm")

    @classmethod
    @asynccontextmanager
    async def open(
        cls, settings: Settings, ledger: Ledger, *, policy: ConcurrencyPolicy | None = None
    ) -> AsyncIterator[LlmGate]:
        """Open the gate of the settings' servers; its slots are given back at the end."""
        bounds = {each.name: bounds_of(settings, each) for each in settings.llm_servers}
        gate = cls(ledger, settings.llm_servers, policy or POLICIES[settings.llm_pacing], bounds)
        try:
            async with renewing("model slots", SLOT_TTL, gate._renew):
                yield gate
        finally:
            try:
                await gate._slots.release_llm_slots(gate._holder)
            except LedgerError as error:  # they run out by themselves
                gate._log.warning("model slots not released", error=str(error))

    @property
    def has_waiting(self) -> bool:
        """Whether calls of this process wait for a slot."""
        return bool(self._waiting)

    async def enter(
        self,
        urgency: Urgency,
        *,
        timeout: float,
        excluded: Collection[str] = (),
        reservation: Callable[[LlmServer], Reservation | None] = lambda _: None,
    ) -> Admission | BudgetRefusal:
        """Wait for a slot at a server that is not in `excluded`, and reserve what the call may cost
        there. Raises LlmSaturated when none is free within `timeout` seconds or all servers are
        paused for long, and LedgerError."""
        deadline = time.monotonic() + timeout
        with self._wait_in_queue(urgency) as waiting_call:
            while True:
                waiting_call.turn.clear()
                seconds_left = deadline - time.monotonic()
                if self._waiting[0] is not waiting_call:
                    await self._wait_for_turn(waiting_call, seconds_left)
                    continue
                admission = await self._take_slot(urgency, excluded, reservation)
                assert not isinstance(admission, CacheHit | LeaseHeld)  # nothing was claimed
                if isinstance(admission, Admission | BudgetRefusal):
                    return admission
                if isinstance(admission, SlotsFull):
                    delay = SLOT_POLL_INTERVAL * self._random.uniform(0.5, 1.5)
                elif admission.seconds > min(BRIEF_PAUSE, seconds_left):
                    raise LlmSaturated(
                        f"the model server is paused: {admission.reason}", after=admission.seconds
                    )
                else:
                    delay = admission.seconds * self._random.uniform(1.0, 1.05)
                await self._wait_for_turn(waiting_call, seconds_left, delay)

    async def claim_and_enter(
        self,
        claim: AnswerClaimRequest,
        urgency: Urgency,
        *,
        excluded: Collection[str],
        reservation: Callable[[LlmServer], Reservation | None],
    ) -> tuple[AnswerClaim | None, Admission | BudgetRefusal | None]:
        """Claim an answer, and with the right to ask take a slot in the same transaction, if one is
        free at once. While other calls wait for their turn, nothing is claimed: the claim is None.
        Raises LedgerError."""
        if self._waiting:
            return None, None
        admission = await self._take_slot(urgency, excluded, reservation, claim)
        if isinstance(admission, CacheHit | LeaseHeld):
            return admission, None
        if isinstance(admission, SlotsFull | ServerPaused):
            return LeaseAcquired(), None
        return LeaseAcquired(), admission

    async def leave(
        self,
        admission: Admission,
        outcome: CallOutcome | None,
        calls: Sequence[LlmCall] = (),
    ) -> bool:
        """Give the slot back. `outcome` is None for a cancelled call; `calls` are the records of
        the call's cost. Returns whether the call failed because the server had too many calls; it
        gets fewer from now on."""
        self._held.pop(admission.slot, None)
        change = None if outcome is None else self._change_after(admission, outcome)
        try:
            await self._slots.end_llm_slot(admission.server.name, admission.slot, change, calls)
        except LedgerError as error:
            # The answer must not be lost because of this: the slot runs out by itself, and the
            # reservation counts as spent in two hours.
            self._log.warning("model slot not released, nor call cost recorded", error=str(error))
        self._wake_first()
        return change is not None and change.is_overload

    def leave_answered(
        self, admission: Admission, outcome: CallOutcome, calls: Sequence[LlmCall]
    ) -> None:
        """Give the slot of an answered call back, as `leave` does, with the ledger's next write,
        for which the caller does not wait."""
        self._held.pop(admission.slot, None)
        ending = self._slots.end_llm_slot_soon(
            admission.server.name, admission.slot, self._change_after(admission, outcome), calls
        )
        ending.add_done_callback(lambda _: self._wake_first())

    def _change_after(self, admission: Admission, outcome: CallOutcome) -> _ChangeAfterCall:
        return _ChangeAfterCall(
            outcome,
            self._policy,
            self._bounds[admission.server.name],
            others_wait=bool(self._waiting),
            jitter=self._random.uniform(1.0, PAUSE_SPREAD),
        )

    # --- waiting calls ------------------------------------------------------------------------

    @contextmanager
    def _wait_in_queue(self, urgency: Urgency) -> Iterator[_WaitingCall]:
        waiting_call = _WaitingCall(urgency, next(self._numbers))
        heapq.heappush(self._waiting, waiting_call)
        try:
            yield waiting_call
        finally:
            self._waiting.remove(waiting_call)
            heapq.heapify(self._waiting)
            self._wake_first()

    def _wake_first(self) -> None:
        if self._waiting:
            self._waiting[0].turn.set()

    async def _wait_for_turn(
        self, waiting_call: _WaitingCall, seconds_left: float, max_seconds: float | None = None
    ) -> None:
        """Wait until it is this call's turn, for at most `max_seconds` seconds, and `seconds_left`
        in all. Raises LlmSaturated if no time is left."""
        if seconds_left <= 0:
            raise LlmSaturated(
                "the model servers get as many requests as they may", after=SHORT_PAUSE
            )
        try:
            async with asyncio.timeout(
                seconds_left if max_seconds is None else min(seconds_left, max_seconds)
            ):
                await waiting_call.turn.wait()
        except TimeoutError:
            return

    async def _take_slot(
        self,
        urgency: Urgency,
        excluded: Collection[str],
        reservation: Callable[[LlmServer], Reservation | None],
        claim: AnswerClaimRequest | None = None,
    ) -> Admission | BudgetRefusal | SlotsFull | ServerPaused | CacheHit | LeaseHeld:
        """Take a slot at a server of the lowest order that is not paused; servers with more weight
        are tried first more often. With `claim`, the answer is claimed first."""
        pauses: list[ServerPaused] = []
        usable = [each for each in self._servers if each.name not in excluded]
        for _, group in groupby(usable, key=lambda each: each.order):
            slots_full: SlotsFull | None = None
            for server in self._shuffle(group):
                slot = f"{self._holder}/{next(self._numbers)}"
                bounds = self._bounds[server.name]
                server_reservation = reservation(server)
                try:
                    admission = await self._slots.take_llm_slot(
                        server.name,
                        slot,
                        self._holder,
                        ttl=SLOT_TTL,
                        is_hot=urgency.is_hot,
                        first_limit=bounds.clamp(bounds.start),
                        max_limit=bounds.max_calls,
                        reservation=server_reservation,
                        claim=claim,
                    )
                except asyncio.CancelledError:
                    # The transaction may have been committed: give back slot and reservation.
                    calls = [] if server_reservation is None else [server_reservation.freed]
                    await asyncio.shield(self.leave(Admission(server, slot), None, calls))
                    raise
                claim = None
                if isinstance(admission, CacheHit | LeaseHeld):
                    return admission
                if isinstance(admission, SlotsFull):
                    slots_full = admission
                elif isinstance(admission, NoBudgetLeft):
                    return BudgetRefusal(server, admission)
                elif isinstance(admission, ServerPaused):
                    pauses.append(self._with_server_name(server, admission))
                else:
                    self._held[slot] = server.name
                    return Admission(server, slot, admission.learned)
            if slots_full is not None:
                return slots_full
        return min(pauses, key=lambda each: each.seconds)

    def _with_server_name(self, server: LlmServer, paused: ServerPaused) -> ServerPaused:
        """Add the server's name to the reason, where there are several servers."""
        if len(self._servers) == 1:
            return paused
        return replace(paused, reason=f"{server.name}: {paused.reason}")

    def _shuffle(self, servers: Iterator[LlmServer]) -> list[LlmServer]:
        # Efraimidis and Spirakis: a weighted order without repetition.
        return sorted(servers, key=lambda each: -(self._random.random() ** (1 / each.weight)))

    async def _renew(self) -> None:
        held_slots = dict(self._held)
        if not held_slots:
            return
        for slot in await self._slots.renew_llm_slots(held_slots, self._holder, SLOT_TTL):
            if slot not in self._held:  # given back meanwhile
                await self._slots.end_llm_slot(held_slots[slot], slot, None)


def all_servers(
    called_reports: Iterable[LlmServerReport], settings: Settings
) -> list[LlmServerReport]:
    """Add to the reports of servers that were called those servers of the settings that were not
    called yet, so that a substitute is shown before it is needed."""
    reports = list(called_reports)
    called_names = {each.name for each in reports}
    uncalled = [
        LlmServerReport(each.name, LlmServerState(bounds_of(settings, each).start), 0, 0.0)
        for each in settings.model_servers
        if each.name not in called_names
    ]
    return sorted((*reports, *uncalled), key=lambda each: each.name)


def calls_allowed(report: LlmServerReport, max_calls: Mapping[str, int]) -> int:
    """Return how many calls a server gets at once. `max_calls` has the settings' maximum by the
    server's name."""
    state = report.state
    return state.calls(max_calls[report.name]) if report.name in max_calls else int(state.allowed)


def bounds_of(settings: Settings, server: LlmServer) -> Bounds:
    """Return the bounds of the calls that a server gets at once."""
    max_calls = settings.max_calls(server)
    start, min_calls = settings.llm_concurrency, settings.llm_concurrency_min
    if settings.llm_pacing != "adaptive":  # other policies do not find a small server's limit
        given_settings = settings.model_fields_set
        start = start if "llm_concurrency" in given_settings else max(start, NON_ADAPTIVE_START)
        if "llm_concurrency_min" not in given_settings:
            min_calls = min(start, NON_ADAPTIVE_MIN)
    return Bounds(min(start, max_calls), min(min_calls, max_calls), max_calls)


def shows_overload(
    state: LlmServerState,
    call: FleetCall,
    now: float,
    *,
    policy: ConcurrencyPolicy,
    bounds: Bounds,
) -> bool:
    """Return whether a call failed because the server had too many calls, so that it gets fewer
    now: it breaks off or refuses more than one call for ten that it answers, and its limit is still
    above `bounds.min_calls`."""
    if (
        call.outcome.end is not CallEnd.BROKEN
        or call.in_flight < 2
        or not policy.counts_broken_answers
    ):
        return False
    policy_state = PolicyState.load(state.pace, bounds, now)
    window = policy_state.window.plus(CallSample(CallEnd.BROKEN, call.in_flight))
    return window.is_refusing and int(policy_state.limit) > bounds.min_calls


def state_after_call(
    state: LlmServerState,
    call: FleetCall,
    now: float,
    *,
    policy: ConcurrencyPolicy,
    bounds: Bounds,
    jitter: float,
) -> LlmServerState:
    """Return the state of a server after a call. `jitter`, from 1 to PAUSE_SPREAD, keeps processes
    apart."""
    outcome, timing = call.outcome, call.outcome.timing or Timing(0.0, 0.0)
    sample = CallSample(
        outcome.end,
        call.in_flight,
        timing.seconds,
        timing.weighted_tokens,
        timing.first_token,
        timing.per_token,
        call.others_wait,
    )
    policy_state = observe(PolicyState.load(state.pace, bounds, now), sample, policy, bounds, now)
    failures = state.failures
    if outcome.end is CallEnd.ANSWERED:
        failures = 0
    elif shows_overload(state, call, now, policy=policy, bounds=bounds):
        pass  # the server will answer when it gets fewer calls
    elif outcome.is_failure and state.paused_until <= now:
        failures += 1  # a call that was under way when the pause began says nothing new
    pause, reason = min(outcome.pause, MAX_PAUSE), outcome.reason
    if failures >= TRIAL_AFTER_FAILURES and failures > state.failures:
        pause = max(pause, min(SHORT_PAUSE * 2.0 ** (failures - TRIAL_AFTER_FAILURES), LONG_PAUSE))
    paused_until = now + pause * jitter if pause else 0.0
    if paused_until <= state.paused_until:
        paused_until, reason = state.paused_until, state.pause_reason or ""
    return replace(
        state,
        limit=policy_state.limit,
        pace=policy_state.dump(),
        failures=failures,
        paused_until=paused_until,
        pause_reason=reason or None,
        learned=outcome.learned or state.learned,
        learned_at=now if outcome.learned else state.learned_at,
    )
