"""The topology of a profile: what must exist on the broker.

Pure: nothing here talks to a broker; `broker.topology.reconcile` does.

Which settings are arguments and which are policies: an argument can never change (redeclaring
with another value is refused), a policy can change at any time, and another policy can take its
place. So what an operator may want to tune (TTL, length, overflow of a lane) is a policy; what
must not change under any policy is an argument: queue type, priorities, the alternate exchange
of `jobs.topic`, and all of a retry queue, which would lose jobs without its dead-letter exchange.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from switchyard.broker.lanes import (
    CONTROL_EXCHANGE,
    DEAD_EXCHANGE,
    DEAD_LOG_QUEUE,
    DEAD_QUEUE,
    DEAD_TTL_SECONDS,
    EVENTS_EXCHANGE,
    JOBS_EXCHANGE,
    LANES,
    RETRY_DELAYS,
    Lane,
    Route,
    queue_name,
    retry_name,
)
from switchyard.broker.management.model import (
    Binding,
    Exchange,
    Policy,
    Queue,
    Topology,
)
from switchyard.broker.message import MAX_PRIORITY
from switchyard.broker.settings import Profile

_NO_DELIVERY_LIMIT = -1
_NAMESPACE = "jobs"
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def build(
    profile: Profile,
    routes: Iterable[Route],
    *,
    lanes: Sequence[Lane] = LANES,
    retry_delays: Sequence[float] = RETRY_DELAYS,
) -> Topology:
    """Return the topology of a profile. Equal input gives an equal topology, in whatever order it
    comes.

    A lane has a queue for each of its own workers and for each worker that a route names.
    `retry_delays` are seconds, at least one millisecond.
    Raises ValueError when a route names an unknown lane or a key that is no plain name, when two
    workers want the same routing key, or when two lanes or two retry levels get the same name.
    """
    _check_lanes(lanes)
    all_routes = _checked_routes(routes, lanes)
    levels = _retry_levels(retry_delays)
    lane_queues = {queue_name(lane.name, worker) for lane in lanes for worker in lane.workers}
    lane_queues |= {route.queue for route in all_routes}
    return Topology(
        profile=profile,
        exchanges=tuple(sorted(_exchanges(levels), key=lambda exchange: exchange.name)),
        queues=tuple(
            sorted(_queues(profile, lane_queues, levels), key=lambda queue: queue.name),
        ),
        bindings=tuple(
            sorted(_bindings(all_routes, levels), key=lambda b: (b.source, b.destination, b.name)),
        ),
        policies=tuple(sorted(_policies(profile, lanes), key=lambda policy: policy.name)),
        prefixes=tuple(f"{name}." for name in (_NAMESPACE, *sorted(lane.name for lane in lanes))),
    )


def _exchanges(levels: Mapping[str, int]) -> Iterable[Exchange]:
    # An argument wins over every policy. So a job with an unknown key is never lost, whatever
    # policies somebody adds, also for publishers that do not set `mandatory`.
    yield Exchange(JOBS_EXCHANGE, "topic", {"alternate-exchange": DEAD_EXCHANGE})
    yield Exchange(DEAD_EXCHANGE, "fanout")
    yield Exchange(EVENTS_EXCHANGE, "topic")
    yield Exchange(CONTROL_EXCHANGE, "fanout")
    for name in levels:
        yield Exchange(name, "fanout")


def _queues(
    profile: Profile, lane_queues: Iterable[str], levels: Mapping[str, int]
) -> Iterable[Queue]:
    for name in lane_queues:
        if profile == "classic":
            yield Queue(name, "classic", {"x-max-priority": MAX_PRIORITY})
        else:
            yield Queue(name, "quorum")  # has strict priorities by itself, and refuses the argument
    # Dead letters are read and put back, over and over, so no delivery limit may apply. A classic
    # queue has none; the quorum profile needs 4.3, where a policy lifts it (`_policies`).
    yield Queue(DEAD_QUEUE, profile)
    yield Queue(DEAD_LOG_QUEUE, profile)
    for name, milliseconds in levels.items():
        yield Queue(
            name,
            "quorum",
            {
                "x-message-ttl": milliseconds,
                # "" is the default exchange: an expired message goes to the queue that its
                # routing key names, the one that it came from.
                "x-dead-letter-exchange": "",
                # The target may be full or away. Then the message stays here and is tried again.
                "x-dead-letter-strategy": "at-least-once",
                "x-overflow": "reject-publish",
            },
        )


def _bindings(routes: Iterable[Route], levels: Iterable[str]) -> Iterable[Binding]:
    for route in routes:
        yield Binding(JOBS_EXCHANGE, route.queue, route.routing_key)
    yield Binding(DEAD_EXCHANGE, DEAD_QUEUE)
    yield Binding(DEAD_EXCHANGE, DEAD_LOG_QUEUE)
    for name in levels:
        yield Binding(name, name)


def _policies(profile: Profile, lanes: Iterable[Lane]) -> Iterable[Policy]:
    # Retry queues have all that they need as arguments. Their policy keeps others away: one with
    # `expires` would delete them, one with a dead-letter routing key would send jobs astray.
    yield Policy(f"{_NAMESPACE}.retry", rf"^{_NAMESPACE}\.retry\.", {"overflow": "reject-publish"})
    for lane in lanes:
        pattern = rf"^{re.escape(lane.name)}\."
        yield Policy(f"{_NAMESPACE}.lane.{lane.name}", pattern, _lane_definition(profile, lane))
    dead: dict[str, Any] = {"message-ttl": DEAD_TTL_SECONDS * 1000}
    if profile == "quorum":
        dead["delivery-limit"] = _NO_DELIVERY_LIMIT
    for name in (DEAD_QUEUE, DEAD_LOG_QUEUE):
        yield Policy(name, f"^{re.escape(name)}$", dead)


def _lane_definition(profile: Profile, lane: Lane) -> dict[str, Any]:
    definition: dict[str, Any] = {
        "dead-letter-exchange": DEAD_EXCHANGE,
        "max-length": lane.max_length,
        "message-ttl": lane.ttl_seconds * 1000,
        "overflow": "reject-publish",
    }
    if profile == "quorum":
        # `overflow` stays `reject-publish`: quorum queues don't know `reject-publish-dlx`, and
        # would drop their oldest message instead.
        definition["dead-letter-strategy"] = "at-least-once"
        # A job is returned unharmed whenever a worker stops or is cut off. From 4.0 the twentieth
        # return would make it a dead letter. Crashes are counted by the ledger's claims instead.
        definition["delivery-limit"] = _NO_DELIVERY_LIMIT
    elif lane.dead_letters_overflow:
        definition["overflow"] = "reject-publish-dlx"
    return definition


def _check_lanes(lanes: Sequence[Lane]) -> None:
    names = [lane.name for lane in lanes]
    for name in names:
        if not _NAME.fullmatch(name) or name == _NAMESPACE:
            raise ValueError(
                f"lane {name!r}: use lower-case letters, digits and _, beginning with a letter; "
                "not 'jobs'"
            )
        if names.count(name) > 1:
            raise ValueError(f"lane {name!r} is declared twice")


def _checked_routes(routes: Iterable[Route], lanes: Iterable[Lane]) -> list[Route]:
    lane_names = {lane.name for lane in lanes}
    by_key: dict[str, Route] = {}
    for route in routes:
        if route.lane not in lane_names:
            raise ValueError(
                f"{route.routing_key!r} is in no lane: choose {', '.join(sorted(lane_names))}"
            )
        for name in (route.job_type, route.worker):
            # "*", "#" and "." mean something in a binding to a topic exchange.
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} in {route}: use lower-case letters, digits and _, beginning with "
                    "a letter"
                )
        other = by_key.setdefault(route.routing_key, route)
        if other != route:
            raise ValueError(
                f"{route.routing_key!r} is worked by {other.worker!r} and by {route.worker!r}: "
                "every job would run twice"
            )
    return sorted(by_key.values())


def _retry_levels(delays: Iterable[float]) -> dict[str, int]:
    """Return the delay in milliseconds of every retry level, by its name."""
    levels: dict[str, int] = {}
    for delay in delays:
        name, milliseconds = retry_name(delay), round(delay * 1000)
        if milliseconds < 1:
            raise ValueError(f"a retry delay of {delay} s: use at least one millisecond")
        if name in levels:
            raise ValueError(f"the retry delays name {name!r} twice")
        levels[name] = milliseconds
    return levels
