"""How many processes of each kind of worker `jobctl up --autoscale` runs.

`decide` is pure. One more process, where the oldest job has waited too long; one less, where a
process fewer would have done for a good while. Between the two lies what changes nothing, so that
processes do not come and go.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from switchyard.broker.wording import pluralize
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
EASY_RATIO = 0.7
"""With one process fewer, so large a share of the slots may be in use: below 1, as jobs come in
waves."""


@dataclass(frozen=True, slots=True)
class Span:
    """Minimum and maximum number of processes."""

    least: int
    most: int


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
    feeds: int | None = None
    """Jobs at once that the servers behind this kind can take, such as those of language models;
    None: any number."""


@dataclass(frozen=True, slots=True)
class Memory:
    """State kept from one reading to the next. Times are seconds of a monotonic clock."""

    started_at: float = float("-inf")
    calm_since: float | None = None
    """Since when one process fewer would have been enough; None: it would not."""


@dataclass(frozen=True, slots=True)
class ScalingCooldowns:
    """Thresholds, in seconds, for one process more and one less."""

    wait: float
    """The oldest job may wait so long before a process is started."""
    calm: float
    """One process fewer must have been enough for so long before one is retired."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Decision on the number of processes of one kind."""

    processes: int
    memory: Memory
    why: str = ""


def decide(
    seen: KindLoad, span: Span, memory: Memory, cooldowns: ScalingCooldowns, now: float
) -> Verdict:
    """Return how many processes there should be: at most one more or one less than now, within the
    bounds."""
    most = _most(seen, span)
    if not span.least <= seen.processes <= max(span.least, most):
        processes = min(max(seen.processes, span.least), max(span.least, most))
        why = "its bounds" if most == span.most else f"its servers bear {seen.feeds:,} at once"
        return Verdict(processes, Memory(started_at=now), why)
    if seen.waited > cooldowns.wait:
        if seen.processes >= most or now - memory.started_at < START_COOLDOWN:
            return Verdict(seen.processes, Memory(memory.started_at))
        why = f"the oldest job has waited {seen.waited:.0f} s"
        return Verdict(seen.processes + 1, Memory(started_at=now), why)
    fewer = (seen.processes - 1) * seen.slots
    is_calm = seen.waited < cooldowns.wait / 2 and seen.running <= fewer * EASY_RATIO
    if seen.processes <= span.least or not is_calm:
        return Verdict(seen.processes, Memory(memory.started_at))
    since = now if memory.calm_since is None else memory.calm_since
    if now - since < cooldowns.calm:
        return Verdict(seen.processes, Memory(memory.started_at, since))
    why = f"{seen.running:,} jobs run, and none has waited long for {now - since:.0f} s"
    return Verdict(seen.processes - 1, Memory(memory.started_at), why)


def idlest(names: Sequence[str], running: Mapping[str, int], number: int) -> list[str]:
    """Return `number` of these processes (`names` is in the order of their start): those with the
    fewest jobs, of equals the youngest."""
    ranked = sorted(enumerate(names), key=lambda each: (running.get(each[1], 0), -each[0]))
    return [name for _, name in ranked[: max(0, number)]]


def _most(seen: KindLoad, span: Span) -> int:
    """Return the largest number of processes of which each can get a job."""
    if seen.feeds is None:
        return span.most
    return min(span.most, max(1, -(-seen.feeds // seen.slots)))


def read_spans(texts: Iterable[str], kinds: Sequence[str], most_of_all: int) -> dict[str, Span]:
    """Parse `--autoscale llm=1..6`; `all=1..4` stands for every kind that is not named itself.
    Raises WrongUsage."""
    spans: dict[str, Span] = {}
    for text in texts:
        kind, _, numbers = text.partition("=")
        least, _, most = numbers.partition("..")
        if kind not in (*kinds, "all"):
            raise WrongUsage(f"--autoscale {text}: there is no {kind!r} among {', '.join(kinds)}")
        is_written = all(each.isascii() and each.isdigit() for each in (least, most))
        if not is_written or not int(least) <= int(most) <= most_of_all or int(most) == 0:
            raise WrongUsage(
                f"--autoscale {text}: write {kind}=MIN..MAX, with MAX from 1 to {most_of_all}"
            )
        spans[kind] = Span(int(least), int(most))
    rest = spans.pop("all", None)
    return spans if rest is None else dict.fromkeys(kinds, rest) | spans


class Autoscaler:
    """Reads the load from time to time, and starts and retires workers of a supervisor."""

    def __init__(self, system: System, supervisor: Supervisor, spans: Mapping[str, Span]) -> None:
        self._system = system
        self._supervisor = supervisor
        self._spans = dict(spans)
        settings = system.settings
        self._cooldowns = ScalingCooldowns(settings.autoscale_wait, settings.autoscale_calm)
        self._memory = dict.fromkeys(spans, Memory())
        self._next_look = 0.0
        self._running: dict[str, int] = {}
        """Jobs in each process, at the last reading."""

    async def look(self, now: float) -> list[str]:
        """Change the numbers of processes if it is time, and return the changes as lines. A ledger
        that is away changes nothing."""
        from switchyard.services.engine.records.errors import LedgerError

        if now < self._next_look:
            return []
        self._next_look = now + POLL_INTERVAL
        try:
            seen = await self._seen()
        except LedgerError:
            return []
        news = []
        for kind, span in self._spans.items():
            verdict = decide(seen[kind], span, self._memory[kind], self._cooldowns, now)
            self._memory[kind] = verdict.memory
            before = seen[kind].processes
            if verdict.processes != before:
                self._set(kind, verdict.processes)
                after = pluralize(verdict.processes, "process", "processes")
                news.append(f"{kind}: {before} → {after}; {verdict.why}")
        return news

    async def _seen(self) -> dict[str, KindLoad]:
        """Read the load of each kind. Raises LedgerError."""
        from switchyard.cli.base.common import open_ledger

        settings = self._system.settings
        async with open_ledger(settings) as ledger:
            load = await ledger.gauges.load(socket.gethostname())
            now = ledger.clock.time()
            servers = await LlmLedger(ledger).slots.llm_servers() if settings.llm_servers else []
        most = {each.name: settings.most_calls(each) for each in settings.llm_servers}
        bears = sum(each.state.calls(most[each.name]) for each in servers if each.name in most)
        seen = {}
        pids = {each.name: each.process.pid for each in self._supervisor.children if each.process}
        for kind in self._spans:
            names = self._names(kind)
            kind_load = load.get(kind)
            waited = (
                0.0
                if kind_load is None or kind_load.oldest is None
                else max(0.0, now - kind_load.oldest)
            )
            by_pid = {} if kind_load is None else kind_load.running
            self._running |= {name: by_pid.get(pids.get(name, 0), 0) for name in names}
            seen[kind] = KindLoad(
                processes=len(names),
                slots=settings.slots_of(kind),
                running=sum(self._running[name] for name in names),
                waited=waited,
                feeds=bears or None if kind == LLM else None,
            )
        return seen

    def _names(self, kind: str) -> list[str]:
        """Return the names of a kind's processes that take jobs, in the order of their start."""
        own = ("worker", kind)
        children = self._supervisor.children
        return [each.name for each in children if each.arguments == own and not each.retires]

    def _set(self, kind: str, count: int) -> None:
        from switchyard.cli.system.local_system import worker_name

        there = self._names(kind)
        for name in idlest(there, self._running, len(there) - count):
            self._supervisor.retire(name)
        taken = {each.name for each in self._supervisor.children}
        free = (n for n in range(1, 10_000) if worker_name(kind, n) not in taken)
        for _ in range(count - len(there)):
            self._supervisor.start(worker_name(kind, next(free)), "worker", kind)
