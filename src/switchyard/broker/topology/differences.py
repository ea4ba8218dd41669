"""Find how a live broker differs from a topology. Pure: nothing here talks to a broker."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from switchyard.broker.lanes import (
    CONTROL_EXCHANGE,
    DEAD_EXCHANGE,
    DEAD_LOG_QUEUE,
    DEAD_QUEUE,
    EVENTS_EXCHANGE,
    JOBS_EXCHANGE,
    SYSTEM_EXCHANGE,
    UNBOUND_SUFFIX,
)
from switchyard.broker.management.live_topology import LiveQueue, LiveTopology
from switchyard.broker.management.model import Arguments, Binding, Exchange, Policy, Queue, Topology
from switchyard.broker.wording import pluralize

_DEAD_QUEUES = (DEAD_QUEUE, DEAD_LOG_QUEUE)
_OPEN_EXCHANGES = frozenset({EVENTS_EXCHANGE, CONTROL_EXCHANGE})
"""Exchanges to which listeners bind queues of their own."""


class Deviation(StrEnum):
    """How something on the broker differs from what is declared."""

    MISSING = "missing"
    EXTRA = "extra"
    """In this system's namespace, but not declared. Reported, never touched."""
    STALE = "stale"
    """A binding that brings a declared routing key to another worker's queue as well, or events
    and commands to a queue of jobs."""
    UNFINISHED = "unfinished"
    """A lane's queue that is marked as not yet bound: `apply` was broken off, or is under way.
    Nothing is published to it."""
    TYPE = "type"
    ARGUMENTS = "arguments"
    """Arguments or flags (durable, auto_delete, internal) that can't change."""
    POLICY = "policy"
    """A policy of ours has another pattern, definition, priority or apply-to."""
    OVERRIDDEN = "overridden"
    """Our policy is right, but another one is in force on a queue."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as declared."""

    problem: Deviation
    kind: str
    """`exchange`, `queue`, `binding` or `policy`."""
    name: str
    text: str
    """The difference in one line."""
    subject: Exchange | Queue | Binding | Policy = field(repr=False)
    """The object that `apply` declares; where stale, unbinds; where unfinished, deletes."""
    advice: str = ""
    """What to do about it where `apply` can't; the same text for all differences of one cause."""

    @property
    def fixable(self) -> bool:
        """Whether `apply` changes it."""
        return self.problem in (
            Deviation.MISSING,
            Deviation.STALE,
            Deviation.POLICY,
            Deviation.UNFINISHED,
        )

    @property
    def is_extra(self) -> bool:
        """Whether it is in our namespace and not declared."""
        return self.problem is Deviation.EXTRA

    @property
    def blocking(self) -> bool:
        """Whether the system does not work as declared until somebody changes it by hand."""
        return not self.fixable and not self.is_extra


def diff(topology: Topology, live: LiveTopology) -> list[Difference]:
    """Return everything that differs, in the order in which `apply` changes it.

    A consequence of a difference is not listed beside it: a queue of the wrong type is one
    difference, although its arguments and policy are then wrong as well. So `apply` keeps such a
    queue under the policy of the profile that its live type belongs to: under the declared one it
    may have no limits, and lose letters.
    """
    differences = [
        *_exchange_differences(topology, live),
        *_queue_differences(topology, live),
        *_binding_differences(topology, live),
        *_policy_differences(topology, live),
        *_overridden_policies(topology, live),
    ]
    return sorted(differences, key=lambda d: (_rank(d), d.kind, d.name))


def _rank(difference: Difference) -> int:
    """Return the place of a difference in the order of changes."""
    if difference.problem is Deviation.UNFINISHED:
        return 9
    match difference.subject:
        case Policy(name=name):
            return 0 if name in _DEAD_QUEUES else 4
        case Exchange(name=name):
            return 1 if name == DEAD_EXCHANGE else 5
        case Queue(name=name):
            return 2 if name in _DEAD_QUEUES else 6
        case Binding(source=source):
            if difference.problem is Deviation.STALE:
                return 8
            return 3 if source == DEAD_EXCHANGE else 7


def _exchange_differences(topology: Topology, live: LiveTopology) -> Iterator[Difference]:
    live_exchanges = {exchange.name: exchange for exchange in live.exchanges}
    for exchange in topology.exchanges:
        actual = live_exchanges.pop(exchange.name, None)
        if actual is None:
            yield _missing_item("exchange", exchange)
        elif actual.type != exchange.type:
            yield _other_type("exchange", exchange, actual.type)
        elif changes := _describe_changes(_settings_of(exchange), _settings_of(actual)):
            yield _other_arguments("exchange", exchange, changes)
    for extra in live_exchanges.values():
        # SYSTEM_EXCHANGE is no leftover: see `broker.topology.system_mark`.
        queue = extra.name.removesuffix(UNBOUND_SUFFIX)
        if queue != extra.name and queue in topology.bound_queues:
            text = f"queue {queue} waits for its bindings: an apply was broken off, or is under way"
            yield Difference(Deviation.UNFINISHED, "queue", queue, text, extra)
        elif topology.owns(extra.name) and extra.name != SYSTEM_EXCHANGE:
            yield _extra_item("exchange", extra)


def _queue_differences(topology: Topology, live: LiveTopology) -> Iterator[Difference]:
    live_queues = {queue.name: queue for queue in live.queues}
    for queue in topology.queues:
        actual = live_queues.pop(queue.name, None)
        if actual is None:
            yield _missing_item("queue", queue)
        elif actual.declared.type != queue.type:
            yield _other_type("queue", queue, actual.declared.type, _messages_note(actual))
        elif changes := _describe_changes(_settings_of(queue), _settings_of(actual.declared)):
            yield _other_arguments("queue", queue, changes, _messages_note(actual))
    for extra in live_queues.values():
        if topology.owns(extra.name) and not extra.declared.is_temporary:
            yield _extra_item("queue", extra.declared, _messages_note(extra))


def _binding_differences(topology: Topology, live: LiveTopology) -> Iterator[Difference]:
    actual, declared = set(live.bindings), set(topology.bindings)
    for binding in topology.bindings:
        if binding not in actual:
            yield _missing_item("binding", binding)
    queue_of_key = {b.routing_key: b.destination for b in declared if b.source == JOBS_EXCHANGE}
    for binding in actual - declared:
        right_queue = queue_of_key.get(binding.routing_key)
        if right_queue is not None and _is_wrong_worker(topology, binding, right_queue):
            text = (
                f"binding {binding.name} is stale: {binding.routing_key} belongs to {right_queue}"
            )
            yield Difference(Deviation.STALE, "binding", binding.name, text, binding)
        elif _brings_announcements(topology, binding):
            text = f"binding {binding.name} is stale: what is announced there is no job"
            yield Difference(Deviation.STALE, "binding", binding.name, text, binding)
        elif _is_extra_binding(topology, live, binding):
            yield _extra_item("binding", binding)


def _is_wrong_worker(topology: Topology, binding: Binding, right_queue: str) -> bool:
    """Tell whether a live binding for a declared key is one of ours that is outdated. A binding to
    another owner's queue (an audit trail, say) is theirs, and harmless."""
    return (
        binding.source == JOBS_EXCHANGE
        and binding.destination_type == "queue"
        and binding.destination != right_queue
        and topology.owns(binding.destination)
        and binding.destination not in _DEAD_QUEUES
    )


def _brings_announcements(topology: Topology, binding: Binding) -> bool:
    """Tell whether a live binding brings events or commands into a queue or an exchange of ours."""
    if binding.source not in _OPEN_EXCHANGES:
        return False
    if binding.destination_type == "queue":
        return any(queue.name == binding.destination for queue in topology.queues)
    return any(exchange.name == binding.destination for exchange in topology.exchanges)


def _is_extra_binding(topology: Topology, live: LiveTopology, binding: Binding) -> bool:
    if binding.destination_type == "queue":
        temporary = {queue.name for queue in live.queues if queue.declared.is_temporary}
        if binding.destination in temporary:
            return False
    exchanges = {exchange.name for exchange in topology.exchanges} - _OPEN_EXCHANGES
    queues = {queue.name for queue in topology.queues}
    return binding.source in exchanges or binding.destination in exchanges | queues


def _policy_differences(topology: Topology, live: LiveTopology) -> Iterator[Difference]:
    live_policies = {policy.name: policy for policy in live.policies}
    types = {queue.name: queue.type for queue in topology.queues}
    of_other_type = {
        topology.policy_of(queue.name)
        for queue in live.queues
        if types.get(queue.name, queue.declared.type) != queue.declared.type
    }
    for policy in topology.policies:
        actual = live_policies.pop(policy.name, None)
        if actual is None:
            yield _missing_item("policy", policy)
        elif policy in of_other_type:
            continue
        elif changes := _describe_changes(_policy_settings(policy), _policy_settings(actual)):
            text = f"policy {policy.name} differs: {changes}"
            yield Difference(Deviation.POLICY, "policy", policy.name, text, policy)
    for extra in live_policies.values():
        if topology.owns(extra.name):
            yield _extra_item("policy", extra)


def _overridden_policies(topology: Topology, live: LiveTopology) -> Iterator[Difference]:
    """Yield a difference for each queue that is as declared, as is its policy, but where another
    policy is in force."""
    right_policies = set(topology.policies) & set(live.policies)
    right_queues = {(queue.name, queue.type): queue for queue in topology.queues}
    for actual in live.queues:
        queue = right_queues.get((actual.name, actual.declared.type))
        policy = topology.policy_of(actual.name)
        if queue is None or (policy is not None and policy not in right_policies):
            continue
        declared_name = policy.name if policy is not None else None
        if actual.policy != declared_name:
            policy_in_force = f"policy {actual.policy}" if actual.policy else "no policy"
            text = (
                f"queue {queue.name} is under {policy_in_force} instead of "
                f"{declared_name or 'none'}"
            )
            advice = (
                f"remove {policy_in_force}, narrow its pattern or lower its priority"
                if actual.policy
                else ""
            )
            yield Difference(Deviation.OVERRIDDEN, "queue", queue.name, text, queue, advice)
        elif changes := _operator_changes(policy, actual, live.operator_policies):
            text = f"queue {queue.name} is under {changes}"
            advice = "an operator policy is changed by whoever runs the broker: ask there"
            yield Difference(Deviation.OVERRIDDEN, "queue", queue.name, text, queue, advice)


def _operator_changes(
    policy: Policy | None, actual: LiveQueue, operator_policies: Iterable[Policy]
) -> str:
    """Return what an operator policy changes in a queue; empty when nothing.

    The broker merges the operator policy of highest priority into the policy: a key that only
    it has is added, of two limits the lower one counts.
    """
    matching = [p for p in operator_policies if _matches(p, actual)]
    if not matching:
        return ""
    policy_in_force = max(matching, key=lambda p: p.priority)
    arguments = {key.removeprefix("x-"): v for key, v in actual.declared.arguments.items()}
    declared = {**arguments, **(policy.definition if policy is not None else {})}
    changed = []
    for key, value in sorted(policy_in_force.definition.items()):
        ours = declared.get(key)
        if ours is None or (value != ours and min(value, ours, key=_comparable_limit) != ours):
            changed.append(f"{key}={value}")
    return f"operator policy {policy_in_force.name} ({', '.join(changed)})" if changed else ""


def _matches(policy: Policy, queue: LiveQueue) -> bool:
    if queue.operator_policy is not None:
        return policy.name == queue.operator_policy
    if policy.apply_to not in ("all", "queues", f"{queue.declared.type}_queues"):
        return False
    try:
        return re.search(policy.pattern, queue.name) is not None
    except re.error:
        # The broker's regular expressions know a little more than Python's. Reporting a policy
        # that does not match after all is better than passing over one that does.
        return True


def _comparable_limit(value: object) -> float:
    """Return a limit for comparison; a negative one means none."""
    if isinstance(value, int | float) and value >= 0:
        return float(value)
    return float("inf")


def _settings_of(item: Exchange | Queue) -> dict[str, object]:
    flags: dict[str, object] = {"durable": item.durable, "auto_delete": item.auto_delete}
    if isinstance(item, Exchange):
        flags["internal"] = item.internal
    return {**flags, **item.arguments}


def _policy_settings(policy: Policy) -> dict[str, object]:
    own = {"pattern": policy.pattern, "priority": policy.priority, "apply-to": policy.apply_to}
    return {**own, **policy.definition}


def _describe_changes(declared: Mapping[str, object], actual: Arguments) -> str:
    """Return `max-length is 5, declared 1000` for every key that differs, with commas between."""
    return ", ".join(
        f"{key} is {_setting_text(actual, key)}, declared {_setting_text(declared, key)}"
        for key in sorted(declared.keys() | actual.keys())
        if (key in declared, declared.get(key)) != (key in actual, actual.get(key))
    )


def _setting_text(settings: Mapping[str, object], key: str) -> str:
    if key not in settings:
        return "not set"
    value = settings[key]
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _messages_note(queue: LiveQueue) -> str:
    return f" ({pluralize(queue.messages, 'message')} in it)"


def _missing_item(kind: str, item: Exchange | Queue | Binding | Policy) -> Difference:
    return Difference(Deviation.MISSING, kind, item.name, f"{kind} {item.name} is missing", item)


def _extra_item(kind: str, item: Exchange | Queue | Binding | Policy, more: str = "") -> Difference:
    text = f"{kind} {item.name}{more} is not declared"
    return Difference(Deviation.EXTRA, kind, item.name, text, item)


def _other_type(kind: str, item: Exchange | Queue, actual: str, more: str = "") -> Difference:
    text = f"{kind} {item.name}{more} has the type {actual}, declared {item.type}"
    return Difference(Deviation.TYPE, kind, item.name, text, item)


def _other_arguments(kind: str, item: Exchange | Queue, changes: str, more: str = "") -> Difference:
    text = f"{kind} {item.name}{more} can't be changed in place: {changes}"
    return Difference(Deviation.ARGUMENTS, kind, item.name, text, item)
