"""How many processes of each kind of worker `jobctl up --autoscale` runs.

`decide` is pure. It adds a process when the oldest job has waited too long, and removes one when
one process fewer would have been enough for a good while. Loads between the two change nothing, so
that processes do not come and go.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from switchyard.broker.wording import pluralize
from switchyard.cli.base.durations import duration_text
from switchyard.cli.base.errors import WrongUsage
from switchyard.services.llm.ledger import LlmLedger

if TYPE_CHECKING:
    from switchyard.cli.system.local_system import System
    from switchyard.cli.system.supervisor import Supervisor

LLM = "llm"
POLL_INTERVAL = 5.0
"""Seconds between two readings of the load."""
START_COOLDOWN = 15.0
"""Seconds that a new process needs until it works: no other is started meanwhile."""
MAX_USED_RATIO = 0.7
"""A process is removed only if the present jobs would use at most this fraction of the remaining
processes' slots: below 1, as jobs come in waves."""


@dataclass(frozen=True, slots=True)
class ProcessRange:
    """Minimum and maximum number of processes of one kind of worker."""

    minimum: int
    maximum: int


@dataclass(frozen=True, slots=True)
class KindLoad:
    """Load of a kind of worker at one moment."""

    processes: int
    """Processes that take jobs: without those that retire."""
    slots: int
    """Slots of each process."""
    running: int
    """Jobs that run in those processes."""
    waited: float
    """Seconds that the oldest job has waited; 0 where none waits."""
    server_limit: int | None = None
    """Jobs at once that the servers behind this kind can take, such as those of language models;
    None: any number."""


@dataclass(frozen=True, slots=True)
class ScalingState:
    """State kept from one reading to the next. Times are seconds of a monotonic clock."""

    started_at: float = float("-inf")
    """When a process was last started, or their number was last brought within the bounds."""
    calm_since: float | None = None
    """Since when one process fewer would have been enough; None: it would not."""


@dataclass(frozen=True, slots=True)
class ScalingThresholds:
    """Thresholds, in seconds, for one process more and one less."""

    wait: float
    """Time that the oldest job may wait before a process is started."""
    calm: float
    """Time for which one process fewer must have been enough before one is retired."""


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """Decision on the number of processes of one kind."""

    processes: int
    state: ScalingState
    why: str = ""


def decide(
    load: KindLoad,
    bounds: ProcessRange,
    state: ScalingState,
    thresholds: ScalingThresholds,
    now: float,
) -> ScalingDecision:
    """Return how many processes there should be: at most one more or one less than now, within the
    bounds."""
    useful = _max_processes(load, bounds)
    maximum = max(bounds.minimum, useful)
    if not bounds.minimum <= load.processes <= maximum:
        processes = min(max(load.processes, bounds.minimum), maximum)
        why = (
            "its bounds"
            if useful == bounds.maximum
            else f"its servers take {load.server_limit:,} jobs at once"
        )
        return ScalingDecision(processes, ScalingState(started_at=now), why)
    if load.waited > thresholds.wait:
        if load.processes >= maximum or now - state.started_at < START_COOLDOWN:
            return ScalingDecision(load.processes, ScalingState(state.started_at))
        why = f"the oldest job has waited {duration_text(round(load.waited))}"
        return ScalingDecision(load.processes + 1, ScalingState(started_at=now), why)
    slots_left = (load.processes - 1) * load.slots
    is_calm = load.waited < thresholds.wait / 2 and load.running <= slots_left * MAX_USED_RATIO
    if load.processes <= bounds.minimum or not is_calm:
        return ScalingDecision(load.processes, ScalingState(state.started_at))
    since = now if state.calm_since is None else state.calm_since
    if now - since < thresholds.calm:
        return ScalingDecision(load.processes, ScalingState(state.started_at, since))
    calm_for = duration_text(round(now - since))
    why = f"{load.running:,} jobs run, and none has waited long for {calm_for}"
    return ScalingDecision(load.processes - 1, ScalingState(state.started_at), why)


def idlest(names: Sequence[str], running: Mapping[str, int], number: int) -> list[str]:
    """Return `number` of these processes (`names` is in the order of their start): those with the
    fewest jobs, of equals the youngest."""
    ranked = sorted(enumerate(names), key=lambda each: (running.get(each[1], 0), -each[0]))
    return [name for _, name in ranked[: max(0, number)]]


def _max_processes(load: KindLoad, bounds: ProcessRange) -> int:
    """Return the largest number of processes of which each can get a job."""
    if load.server_limit is None:
        return bounds.maximum
    return min(bounds.maximum, max(1, -(-load.server_limit // load.slots)))


def parse_ranges(
    texts: Iterable[str], kinds: Sequence[str], max_processes: int
) -> dict[str, ProcessRange]:
    """Parse `--autoscale llm=1..6`; `all=1..4` stands for every kind that is not named itself.
    Raises WrongUsage."""
    ranges: dict[str, ProcessRange] = {}
    for text in texts:
        kind, _, numbers = text.partition("=")
        minimum, _, maximum = numbers.partition("..")
        if kind not in (*kinds, "all"):
            raise WrongUsage(f"--autoscale {text}: there is no {kind!r} among {', '.join(kinds)}")
        are_numbers = all(each.isascii() and each.isdigit() for each in (minimum, maximum))
        if (
            not are_numbers
            or not int(minimum) <= int(maximum) <= max_processes
            or int(maximum) == 0
        ):
            raise WrongUsage(
                f"--autoscale {text}: write {kind}=MIN..MAX, with MAX from 1 to {max_processes}"
            )
        ranges[kind] = ProcessRange(int(minimum), int(maximum))
    rest = ranges.pop("all", None)
    return ranges if rest is None else dict.fromkeys(kinds, rest) | ranges


class Autoscaler:
    """Reads the load from time to time, and starts and retires workers of a supervisor."""

    def __init__(
        self, system: System, supervisor: Supervisor, ranges: Mapping[str, ProcessRange]
    ) -> None:
        self._system = system
        self._supervisor = supervisor
        self._ranges = dict(ranges)
        settings = system.settings
        self._thresholds = ScalingThresholds(settings.autoscale_wait, settings.autoscale_calm)
        self._states = dict.fromkeys(ranges, ScalingState())
        self._next_reading = 0.0
        self._running: dict[str, int] = {}
        """Jobs in each process, at the last reading."""

    async def rescale(self, now: float) -> list[str]:
        """Change the numbers of processes if it is time, and return the changes as lines. Nothing
        is changed while the ledger is away."""
        from switchyard.services.engine.records.errors import LedgerError

        if now < self._next_reading:
            return []
        self._next_reading = now + POLL_INTERVAL
        try:
            loads = await self._read_loads()
        except LedgerError:
            return []
        news = []
        for kind, bounds in self._ranges.items():
            decision = decide(loads[kind], bounds, self._states[kind], self._thresholds, now)
            self._states[kind] = decision.state
            before = loads[kind].processes
            if decision.processes != before:
                self._set_processes(kind, decision.processes)
                after = pluralize(decision.processes, "process", "processes")
                news.append(f"{kind}: {before} → {after}; {decision.why}")
        return news

    async def _read_loads(self) -> dict[str, KindLoad]:
        """Read the load of each kind. Raises LedgerError."""
        from switchyard.cli.base.common import open_ledger

        settings = self._system.settings
        async with open_ledger(settings) as ledger:
            measured = await ledger.gauges.load(socket.gethostname())
            now = ledger.clock.time()
            servers = await LlmLedger(ledger).slots.llm_servers() if settings.llm_servers else []
        max_calls = {each.name: settings.max_calls(each) for each in settings.llm_servers}
        server_calls = sum(
            each.state.calls(max_calls[each.name]) for each in servers if each.name in max_calls
        )
        loads = {}
        pids = {each.name: each.process.pid for each in self._supervisor.children if each.process}
        for kind in self._ranges:
            names = self._process_names(kind)
            kind_load = measured.get(kind)
            waited = (
                0.0
                if kind_load is None or kind_load.oldest is None
                else max(0.0, now - kind_load.oldest)
            )
            by_pid = {} if kind_load is None else kind_load.running
            self._running |= {name: by_pid.get(pids.get(name, 0), 0) for name in names}
            loads[kind] = KindLoad(
                processes=len(names),
                slots=settings.slots_of(kind),
                running=sum(self._running[name] for name in names),
                waited=waited,
                server_limit=server_calls or None if kind == LLM else None,
            )
        return loads

    def _process_names(self, kind: str) -> list[str]:
        """Return the names of a kind's processes that take jobs, in the order of their start."""
        own = ("worker", kind)
        children = self._supervisor.children
        return [each.name for each in children if each.arguments == own and not each.is_retiring]

    def _set_processes(self, kind: str, count: int) -> None:
        from switchyard.cli.system.local_system import worker_name

        names = self._process_names(kind)
        for name in idlest(names, self._running, len(names) - count):
            self._supervisor.retire(name)
        taken = {each.name for each in self._supervisor.children}
        free = (n for n in range(1, 10_000) if worker_name(kind, n) not in taken)
        for _ in range(count - len(names)):
            self._supervisor.start(worker_name(kind, next(free)), "worker", kind)
