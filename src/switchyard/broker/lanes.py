"""Lanes: classes of urgency, and the names that follow from them.

The numbers are those of requirement T1 (docs/requirements.md). Everything that names a queue, an
exchange or a routing key asks this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

JOBS_EXCHANGE = "jobs.topic"
DEAD_EXCHANGE = "jobs.dlx"
EVENTS_EXCHANGE = "jobs.events"
CONTROL_EXCHANGE = "jobs.control"
SYSTEM_EXCHANGE = "jobs.system"
DEAD_QUEUE = "jobs.dead"
DEAD_LOG_QUEUE = "jobs.dead.log"
STAND_IN_PREFIX = "jobs.migrate."
"""Prefix of the name of a queue's stand-in, which takes the queue's jobs while it is remade with
another type."""
UNBOUND_SUFFIX = ".unbound"
"""Suffix of the exchange that marks a lane's queue as not yet bound: made before the queue, deleted
once its bindings are made. The rights in `broker.topology.users` that let a user look whether the
queue exists cover this exchange, too."""

HOUR = 3600
DEAD_TTL_SECONDS = 7 * 24 * HOUR

RETRY_DELAYS: tuple[float, ...] = (5, 10, 20, 40, 80, 160, 300)
"""Seconds that a retried job can wait on the broker, one exchange and queue each."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A class of urgency with its limits."""

    name: str
    default_priority: int
    """Priority of its messages where the publisher names none; also the lane's rank."""
    ttl_seconds: int
    """Age at which a waiting job is dead-lettered as expired."""
    max_length: int
    """Messages that each of its queues holds at most."""
    dead_letters_overflow: bool
    """Whether a full queue dead-letters a new message to `jobs.dead`; else it refuses the message.
    The publisher learns of either."""
    workers: tuple[str, ...]
    """Kinds of worker that always have a queue in this lane."""


HOT = Lane("hot", 10, 1 * HOUR, 1_000, True, ("ingest", "llm", "embed", "link"))
VLM_OCR = Lane("vlm_ocr", 5, 4 * HOUR, 100, False, ("ocr",))
MAINTENANCE = Lane("maintenance", 2, 48 * HOUR, 1_000, False, ("link", "reindex"))
BACKFILL = Lane("backfill", 1, 24 * HOUR, 10_000, False, ("ingest", "llm", "embed", "reindex"))

LANES: tuple[Lane, ...] = (HOT, VLM_OCR, MAINTENANCE, BACKFILL)
"""All lanes, most urgent first."""


def lane_named(name: str, lanes: Iterable[Lane] = LANES) -> Lane:
    """Return the lane of that name. Raises ValueError, naming those there are."""
    candidates = tuple(lanes)
    for lane in candidates:
        if lane.name == name:
            return lane
    raise ValueError(
        f"no lane {name!r}: choose one of {', '.join(lane.name for lane in candidates)}"
    )


@dataclass(frozen=True, slots=True, order=True)
class Route:
    """`<lane>.<job_type>` is worked by `worker`."""

    lane: str
    job_type: str
    worker: str

    @property
    def routing_key(self) -> str:
        return f"{self.lane}.{self.job_type}"

    @property
    def queue(self) -> str:
        return queue_name(self.lane, self.worker)


def queue_name(lane: str, worker: str) -> str:
    """Return the queue of one kind of worker in one lane."""
    return f"{lane}.{worker}"


def lane_of(name: str) -> str:
    """Return the lane part of a routing key or of a queue's name."""
    return name.partition(".")[0]


def split_routing_key(routing_key: str) -> tuple[str, str]:
    """Return `(lane, job_type)` of a routing key. Raises ValueError when it does not have that
    form."""
    lane, dot, job_type = routing_key.partition(".")
    if not (lane and dot and job_type) or "." in job_type:
        raise ValueError(f"{routing_key!r} is not of the form <lane>.<job_type>")
    return lane, job_type


def retry_name(delay_seconds: float) -> str:
    """Return the name of one retry level's exchange and queue: `jobs.retry.5s`, in tests
    `jobs.retry.200ms`."""
    milliseconds = round(delay_seconds * 1000)
    text = f"{milliseconds // 1000}s" if milliseconds % 1000 == 0 else f"{milliseconds}ms"
    return f"jobs.retry.{text}"
