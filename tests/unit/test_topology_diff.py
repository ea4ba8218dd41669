"""Differences between the declared and the live topology, in an order that is safe to apply."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.broker.errors import TopologyMismatch
from switchyard.broker.lanes import Route
from switchyard.broker.management.live_topology import LiveQueue, LiveTopology
from switchyard.broker.management.model import Binding, Exchange, Policy, Queue, Topology
from switchyard.broker.topology.build import build
from switchyard.broker.topology.differences import Deviation, diff
from switchyard.broker.topology.reconcile import ApplyReport

ROUTES = (
    Route("hot", "summarize_content", "llm"),
    Route("hot", "embed_content", "embed"),
    Route("maintenance", "link_content", "link"),
)
TOPOLOGY = build("classic", ROUTES)


def live_topology(topology: Topology) -> LiveTopology:
    """Return a live topology that is exactly as declared."""

    def live_queue(queue: Queue) -> LiveQueue:
        policy = topology.policy_of(queue.name)
        return LiveQueue(queue, policy=policy.name if policy else None)

    return LiveTopology(
        exchanges=(Exchange("", "direct"), Exchange("amq.topic", "topic"), *topology.exchanges),
        queues=tuple(map(live_queue, topology.queues)),
        bindings=topology.bindings,
        policies=topology.policies,
    )


LIVE = live_topology(TOPOLOGY)


def with_queue(name: str, **changes: Any) -> LiveTopology:
    """Return LIVE with other fields of one queue."""
    return replace(
        LIVE,
        queues=tuple(replace(q, **changes) if q.name == name else q for q in LIVE.queues),
    )


def problems_and_names(live: LiveTopology) -> list[tuple[str, str]]:
    return [(difference.problem.value, difference.name) for difference in diff(TOPOLOGY, live)]


@pytest.mark.parametrize("profile", ["classic", "quorum"])
def test_a_broker_as_declared_has_no_difference(profile: str) -> None:
    topology = build("quorum" if profile == "quorum" else "classic", ROUTES)
    assert diff(topology, live_topology(topology)) == []


def test_on_an_empty_broker_everything_is_missing_dead_letters_first() -> None:
    differences = diff(TOPOLOGY, LiveTopology())
    total = sum(
        len(part)
        for part in (TOPOLOGY.exchanges, TOPOLOGY.queues, TOPOLOGY.bindings, TOPOLOGY.policies)
    )
    assert len(differences) == total
    assert all(d.problem is Deviation.MISSING and d.fixable for d in differences)
    names = [d.name for d in differences]
    assert names[:7] == [
        *("jobs.dead", "jobs.dead.log"),  # policies
        "jobs.dlx",
        *("jobs.dead", "jobs.dead.log"),  # queues
        "jobs.dlx → jobs.dead (every key)",
        "jobs.dlx → jobs.dead.log (every key)",
    ]
    kinds = [d.kind for d in differences[7:]]
    assert kinds == sorted(kinds, key=["policy", "exchange", "queue", "binding"].index)


@given(st.data())
def test_exactly_the_missing_objects_are_found(data: st.DataObject) -> None:
    exchanges = data.draw(st.sets(st.sampled_from(TOPOLOGY.exchanges)))
    queues = data.draw(st.sets(st.sampled_from(TOPOLOGY.queues)))
    bindings = data.draw(st.sets(st.sampled_from(TOPOLOGY.bindings)))
    policies = data.draw(st.sets(st.sampled_from(TOPOLOGY.policies)))
    live = LiveTopology(
        exchanges=tuple(e for e in LIVE.exchanges if e not in exchanges),
        queues=tuple(q for q in LIVE.queues if q.declared not in queues),
        bindings=tuple(b for b in LIVE.bindings if b not in bindings),
        policies=tuple(p for p in LIVE.policies if p not in policies),
    )
    subjects = [difference.subject for difference in diff(TOPOLOGY, live)]
    assert len(subjects) == len(exchanges | queues | bindings | policies)
    assert set(subjects) == exchanges | queues | bindings | policies


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"definition": {"max-length": 5}}, "max-length is 5, declared 1000"),
        ({"pattern": "^hot"}, r"pattern is '^hot', declared '^hot\\.'"),
        ({"priority": 0}, "priority is 0, declared 10"),
        ({"apply_to": "all"}, "apply-to is 'all', declared 'queues'"),
    ],
)
def test_our_policy_with_other_settings_can_be_changed(
    change: dict[str, Any], message: str
) -> None:
    policies = tuple(
        replace(p, **change) if p.name == "jobs.lane.hot" else p for p in LIVE.policies
    )
    [difference] = diff(TOPOLOGY, replace(LIVE, policies=policies))
    assert (difference.problem, difference.fixable) == (Deviation.POLICY, True)
    assert message in difference.text
    assert difference.subject in TOPOLOGY.policies


def test_another_queue_type_is_one_difference_with_the_number_of_messages() -> None:
    [difference] = diff(
        TOPOLOGY,
        with_queue("hot.llm", declared=Queue("hot.llm", "quorum"), messages=12, policy="other"),
    )
    assert (difference.problem, difference.fixable) == (Deviation.TYPE, False)
    assert difference.blocking
    assert (
        difference.text == "queue hot.llm (12 messages in it) has the type quorum, declared classic"
    )


@pytest.mark.parametrize(
    ("queue", "message"),
    [
        (Queue("hot.llm", "classic", {"x-max-priority": 5}), "x-max-priority is 5, declared 10"),
        (Queue("hot.llm", "classic"), "x-max-priority is not set, declared 10"),
        (
            Queue("hot.llm", "classic", {"x-max-priority": 10, "x-max-length": 3}),
            "x-max-length is 3, declared not set",
        ),
        (
            Queue("hot.llm", "classic", {"x-max-priority": 10}, durable=False),
            "durable is false, declared true",
        ),
    ],
)
def test_other_arguments_of_a_queue_cannot_be_changed(queue: Queue, message: str) -> None:
    [difference] = diff(TOPOLOGY, with_queue("hot.llm", declared=queue))
    assert (difference.problem, difference.fixable) == (Deviation.ARGUMENTS, False)
    assert message in difference.text


def test_an_exchange_without_its_alternate_cannot_be_changed() -> None:
    exchanges = [e for e in LIVE.exchanges if e.name != "jobs.topic"]
    live = replace(LIVE, exchanges=(*exchanges, Exchange("jobs.topic", "topic")))
    assert problems_and_names(live) == [("arguments", "jobs.topic")]


@pytest.mark.parametrize(
    "extra",
    [
        {"exchanges": (*LIVE.exchanges, Exchange("jobs.old", "topic"))},
        {"queues": (*LIVE.queues, LiveQueue(Queue("hot.old", "classic")))},
        {"policies": (*LIVE.policies, Policy("jobs.old", "^nothing$", {"max-length": 1}))},
        {"bindings": (*LIVE.bindings, Binding("jobs.topic", "hot.llm", "hot.removed"))},
        {"bindings": (*LIVE.bindings, Binding("jobs.topic", "audit", "hot.summarize_content"))},
        {"bindings": (*LIVE.bindings, Binding("jobs.topic", "hot.llm", "hot.*"))},
        {  # bound twice to the right worker, which still gets each job once
            "bindings": (
                *LIVE.bindings,
                Binding("jobs.topic", "hot.llm", "hot.summarize_content", arguments={"x": 1}),
            )
        },
        {"bindings": (*LIVE.bindings, Binding("amq.topic", "hot.llm", "#"))},
        {"bindings": (*LIVE.bindings, Binding("jobs.topic", "mirror", "#", "exchange"))},
        {"bindings": (*LIVE.bindings, Binding("jobs.topic", "jobs.dead", "hot.embed_content"))},
    ],
    ids=lambda extra: next(iter(extra)),
)
def test_undeclared_objects_are_reported_and_left(extra: dict[str, Any]) -> None:
    [difference] = diff(TOPOLOGY, replace(LIVE, **extra))
    assert difference.problem is Deviation.EXTRA
    assert not difference.fixable
    assert not difference.blocking


@pytest.mark.parametrize(
    "foreign",
    [
        {"exchanges": (*LIVE.exchanges, Exchange("hotel", "topic"), Exchange("jobsite", "topic"))},
        {"queues": (*LIVE.queues, LiveQueue(Queue("audit", "stream")))},
        {"queues": (*LIVE.queues, LiveQueue(Queue("jobs.tap", "classic", auto_delete=True)))},
        {"queues": (*LIVE.queues, LiveQueue(Queue("jobs.tap", "classic", exclusive=True)))},
        {"bindings": (*LIVE.bindings, Binding("jobs.events", "some.queue", "#"))},
        {"bindings": (*LIVE.bindings, Binding("jobs.control", "amq.gen-1"))},
        {"bindings": (*LIVE.bindings, Binding("amq.topic", "audit", "#"))},
        {"policies": (*LIVE.policies, Policy("ha-all", "^other", {"max-length": 1}))},
        {
            "queues": (*LIVE.queues, LiveQueue(Queue("tap", "classic", exclusive=True))),
            "bindings": (*LIVE.bindings, Binding("jobs.topic", "tap", "#")),
        },
    ],
)
def test_objects_of_other_programs_are_ignored(foreign: dict[str, Any]) -> None:
    assert problems_and_names(replace(LIVE, **foreign)) == []


@pytest.mark.parametrize("old_queue", ["hot.embed", "hot.somebody", "backfill.llm"])
def test_a_binding_that_brings_a_key_to_the_wrong_worker_is_stale(old_queue: str) -> None:
    stale = Binding("jobs.topic", old_queue, "hot.summarize_content")
    [difference] = diff(TOPOLOGY, replace(LIVE, bindings=(stale, *LIVE.bindings)))
    assert (difference.problem, difference.subject) == (Deviation.STALE, stale)
    assert difference.fixable
    assert "belongs to hot.llm" in difference.text


def test_a_key_gets_its_new_binding_before_it_loses_the_old_one() -> None:
    right = Binding("jobs.topic", "hot.llm", "hot.summarize_content")
    stale = Binding("jobs.topic", "hot.embed", "hot.summarize_content")
    bindings = (stale, *(b for b in LIVE.bindings if b != right))
    assert problems_and_names(replace(LIVE, bindings=bindings)) == [
        ("missing", right.name),
        ("stale", stale.name),
    ]


@pytest.mark.parametrize("policy_in_force", ["ha-all", None])
def test_another_policy_in_force_is_found(policy_in_force: str | None) -> None:
    [difference] = diff(TOPOLOGY, with_queue("hot.llm", policy=policy_in_force))
    assert (difference.problem, difference.name) == (Deviation.OVERRIDDEN, "hot.llm")
    assert difference.blocking
    assert (policy_in_force or "no policy") in difference.text
    assert "jobs.lane.hot" in difference.text


def test_a_missing_policy_is_not_reported_again_at_its_queues() -> None:
    policies = tuple(p for p in LIVE.policies if p.name != "jobs.lane.hot")
    live = replace(with_queue("hot.llm", policy=None), policies=policies)
    assert problems_and_names(live) == [("missing", "jobs.lane.hot")]


@pytest.mark.parametrize(
    ("definition", "is_found"),
    [
        ({"message-ttl": 1000}, True),  # lower than ours, so it takes effect
        ({"expires": 60_000}, True),  # the broker would delete the queue
        ({"max-length": 10_000_000, "message-ttl": 2**31}, False),  # ours are lower
        ({"max-length": 1000}, False),
    ],
)
def test_an_operator_policy_is_a_difference_if_it_changes_something(
    definition: dict[str, int], is_found: bool
) -> None:
    operator = Policy("caps", r"^hot\.llm$", definition, priority=0)
    weaker = Policy("weak", ".*", {"expires": 1}, priority=-1)
    elsewhere = Policy("else", "^other", {"expires": 1}, priority=9)
    not_for_queues = Policy("ex", ".*", {"expires": 1}, priority=9, apply_to="exchanges")
    operator_policies = (operator, elsewhere, not_for_queues)
    expected = [("overridden", "hot.llm")] if is_found else []
    assert problems_and_names(replace(LIVE, operator_policies=operator_policies)) == expected
    queues = {
        name for _, name in problems_and_names(replace(LIVE, operator_policies=(operator, weaker)))
    }
    assert ("hot.llm" in queues) == is_found
    assert "hot.embed" in queues


def test_an_operator_limit_is_a_difference_where_a_quorum_lane_has_none() -> None:
    topology = build("quorum", ROUTES)
    operator = Policy("caps", r"^hot\.llm$", {"delivery-limit": 5}, priority=0)
    live = replace(live_topology(topology), operator_policies=(operator,))
    assert [d.problem for d in diff(topology, live)] == [Deviation.OVERRIDDEN]


def test_an_operator_policy_that_python_cannot_read_is_reported() -> None:
    operator = Policy("caps", r"(?|(hot)|(cold))", {"expires": 5}, priority=0)
    assert ("overridden", "hot.llm") in problems_and_names(
        replace(LIVE, operator_policies=(operator,))
    )


def test_a_report_fails_for_blocking_differences_and_not_for_extras() -> None:
    extra = diff(TOPOLOGY, replace(LIVE, exchanges=(*LIVE.exchanges, Exchange("jobs.x", "topic"))))
    ApplyReport(done=(), left=tuple(extra)).require_success()
    blocked = diff(TOPOLOGY, with_queue("hot.llm", declared=Queue("hot.llm", "quorum")))
    report = ApplyReport(done=(), left=(*extra, *blocked))
    assert (report.extras, report.blocked) == (tuple(extra), tuple(blocked))
    with pytest.raises(TopologyMismatch, match=r"hot\.llm .* has the type quorum"):
        report.require_success()
