"""The declared topology: the numbers of requirement T1, and rules for any routes."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.broker.lanes import HOT, LANES, Lane, Route
from switchyard.broker.management.model import Binding, Exchange, Policy, Queue, Topology
from switchyard.broker.settings import Profile
from switchyard.broker.topology.build import build

HOUR_MS = 3_600_000
WEEK_MS = 7 * 24 * HOUR_MS
PROFILES: tuple[Profile, ...] = ("classic", "quorum")
ROUTES = (
    Route("hot", "summarize_content", "llm"),
    Route("backfill", "summarize_content", "llm"),
    Route("vlm_ocr", "ocr_pdf", "ocr"),
)
# Policy keys that RabbitMQ 3.10 knows for each queue type. If a policy has one key that the type of
# a queue does not know, none of the policy applies to it.
CLASSIC_KEYS = {"dead-letter-exchange", "max-length", "message-ttl", "overflow"}
QUORUM_KEYS = CLASSIC_KEYS | {"dead-letter-strategy", "delivery-limit"}

LETTERS = "abcdefghijklmnopqrstuvwxyz"
# Built from parts, because a pattern takes Hypothesis nearly three times as long.
names = st.builds(
    str.__add__, st.sampled_from(LETTERS), st.text(f"{LETTERS}0123456789_", max_size=8)
)
lanes_of_routes = st.sampled_from([lane.name for lane in LANES])


@st.composite
def route_lists(draw: st.DrawFn) -> list[Route]:
    workers = draw(st.dictionaries(st.tuples(lanes_of_routes, names), names, max_size=12))
    return [Route(lane, job_type, worker) for (lane, job_type), worker in workers.items()]


def policies_by_name(topology: Topology) -> dict[str, Policy]:
    return {policy.name: policy for policy in topology.policies}


def queues_by_name(topology: Topology) -> dict[str, Queue]:
    return {queue.name: queue for queue in topology.queues}


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(
    ("lane", "hours", "max_length"),
    [("hot", 1, 1_000), ("backfill", 24, 10_000), ("vlm_ocr", 4, 100), ("maintenance", 48, 1_000)],
)
def test_lanes_have_the_limits_of_requirement_t1(
    profile: Profile, lane: str, hours: int, max_length: int
) -> None:
    policy = policies_by_name(build(profile, ROUTES))[f"jobs.lane.{lane}"]
    assert policy.definition["message-ttl"] == hours * HOUR_MS
    assert policy.definition["max-length"] == max_length
    assert policy.definition["dead-letter-exchange"] == "jobs.dlx"
    assert policy.apply_to == "queues"


def test_only_hot_classic_queues_dead_letter_their_overflow() -> None:
    def overflow(profile: Profile) -> dict[str, str]:
        return {
            policy.name: policy.definition["overflow"]
            for policy in build(profile, ROUTES).policies
            if policy.name.startswith("jobs.lane.")
        }

    refuse_all = dict.fromkeys((f"jobs.lane.{lane.name}" for lane in LANES), "reject-publish")
    assert overflow("classic") == refuse_all | {"jobs.lane.hot": "reject-publish-dlx"}
    assert overflow("quorum") == refuse_all


@pytest.mark.parametrize("profile", PROFILES)
def test_each_lane_has_a_queue_for_each_of_its_workers(profile: Profile) -> None:
    lane_queues = {
        name for name in queues_by_name(build(profile, ())) if not name.startswith("jobs.")
    }
    assert lane_queues == {
        *("hot.ingest", "hot.llm", "hot.embed", "hot.link"),
        *("backfill.ingest", "backfill.llm", "backfill.embed", "backfill.reindex"),
        *("maintenance.link", "maintenance.reindex"),
        "vlm_ocr.ocr",
    }


def test_a_route_to_another_worker_adds_a_queue() -> None:
    topology = build("classic", [Route("hot", "translate", "translator")])
    assert Queue("hot.translator", "classic", {"x-max-priority": 10}) in topology.queues
    assert Binding("jobs.topic", "hot.translator", "hot.translate") in topology.bindings


@pytest.mark.parametrize("profile", PROFILES)
def test_retry_queues_wait_and_return_without_losing_anything(profile: Profile) -> None:
    topology = build(profile, ROUTES)
    levels = {name: queue for name, queue in queues_by_name(topology).items() if "retry" in name}
    assert {name: queue.arguments["x-message-ttl"] for name, queue in levels.items()} == {
        f"jobs.retry.{seconds}s": seconds * 1000 for seconds in (5, 10, 20, 40, 80, 160, 300)
    }
    for name, queue in levels.items():
        assert queue.type == "quorum"
        assert {key: value for key, value in queue.arguments.items() if "ttl" not in key} == {
            "x-dead-letter-exchange": "",
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        }
        assert Exchange(name, "fanout") in topology.exchanges
        assert Binding(name, name) in topology.bindings


@pytest.mark.parametrize("profile", PROFILES)
def test_dead_letters_wait_a_week_without_any_limit(profile: Profile) -> None:
    topology = build(profile, ROUTES)
    for name in ("jobs.dead", "jobs.dead.log"):
        assert queues_by_name(topology)[name] == Queue(name, profile)
        policy = topology.policy_of(name)
        assert policy is not None
        limits = {"delivery-limit": -1} if profile == "quorum" else {}
        assert policy.definition == {"message-ttl": WEEK_MS} | limits
        assert Binding("jobs.dlx", name) in topology.bindings


@pytest.mark.parametrize("profile", PROFILES)
def test_jobs_with_unknown_keys_go_to_the_dead_letters(profile: Profile) -> None:
    exchanges = {exchange.name: exchange for exchange in build(profile, ROUTES).exchanges}
    assert exchanges["jobs.topic"] == Exchange(
        "jobs.topic", "topic", {"alternate-exchange": "jobs.dlx"}
    )
    assert exchanges["jobs.dlx"] == Exchange("jobs.dlx", "fanout")
    assert exchanges["jobs.events"] == Exchange("jobs.events", "topic")
    assert exchanges["jobs.control"] == Exchange("jobs.control", "fanout")


@pytest.mark.parametrize(
    ("profile", "lane_queue"),
    [
        ("classic", Queue("hot.llm", "classic", {"x-max-priority": 10})),
        ("quorum", Queue("hot.llm", "quorum")),  # refuses x-max-priority
    ],
)
def test_lane_queues_have_priorities(profile: Profile, lane_queue: Queue) -> None:
    assert queues_by_name(build(profile, ROUTES))["hot.llm"] == lane_queue


@pytest.mark.parametrize("profile", PROFILES)
def test_returned_jobs_are_never_counted_by_the_broker(profile: Profile) -> None:
    for queue in build(profile, ROUTES).queues:
        policy = build(profile, ROUTES).policy_of(queue.name)
        assert policy is not None
        if queue.type == "quorum" and not queue.name.startswith("jobs.retry."):
            assert policy.definition["delivery-limit"] == -1
        assert policy.definition.get("overflow") != "drop-head"


@given(routes=route_lists(), profile=st.sampled_from(PROFILES))
def test_every_key_goes_to_its_queue_and_nowhere_else(
    routes: list[Route], profile: Profile
) -> None:
    topology = build(profile, routes)
    bound = [(b.routing_key, b.destination) for b in topology.bindings if b.source == "jobs.topic"]
    assert sorted(bound) == sorted((route.routing_key, route.queue) for route in routes)
    assert not any(set("*#") & set(key) for key, _ in bound)


@given(routes=route_lists(), profile=st.sampled_from(PROFILES))
def test_bindings_connect_declared_exchanges_and_queues(
    routes: list[Route], profile: Profile
) -> None:
    topology = build(profile, routes)
    exchanges = {exchange.name for exchange in topology.exchanges}
    assert len(exchanges) == len(topology.exchanges)
    assert len(queues_by_name(topology)) == len(topology.queues)
    assert {binding.source for binding in topology.bindings} <= exchanges
    assert {binding.destination for binding in topology.bindings} <= set(queues_by_name(topology))
    assert all(
        map(topology.owns, [*exchanges, *queues_by_name(topology), *policies_by_name(topology)])
    )


@given(routes=route_lists(), profile=st.sampled_from(PROFILES))
def test_each_queue_has_one_policy_with_keys_that_its_type_knows(
    routes: list[Route], profile: Profile
) -> None:
    topology = build(profile, routes)
    for queue in topology.queues:
        matching = [p for p in topology.policies if re.search(p.pattern, queue.name)]
        assert matching == [topology.policy_of(queue.name)]
        assert set(matching[0].definition) <= (
            CLASSIC_KEYS if profile == "classic" else QUORUM_KEYS
        )


@pytest.mark.parametrize(
    "foreign", ["hot", "hotter.llm", "my.hot.llm", "jobs.deadline", "jobs.dead.log2", "xjobs.dead"]
)
def test_policies_leave_queues_of_others_alone(foreign: str) -> None:
    assert build("classic", ROUTES).policy_of(foreign) is None


@given(routes=route_lists(), data=st.data())
def test_the_order_of_the_input_does_not_matter(routes: list[Route], data: st.DataObject) -> None:
    topology = build("classic", routes)
    assert topology == build(
        "classic",
        data.draw(st.permutations(routes * 2)),
        lanes=data.draw(st.permutations(LANES)),
    )


@pytest.mark.parametrize(
    ("routes", "complaint"),
    [
        ([Route("warm", "summarize", "llm")], "no lane"),
        ([Route("hot", "*", "llm")], "lower-case"),
        ([Route("hot", "a.b", "llm")], "lower-case"),
        ([Route("hot", "summarize", "l.m")], "lower-case"),
        ([Route("hot", "summarize", "llm"), Route("hot", "summarize", "ingest")], "run twice"),
    ],
)
def test_invalid_routes_are_refused(routes: list[Route], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        build("classic", routes)


@pytest.mark.parametrize(
    ("lanes", "complaint"),
    [
        ([HOT, HOT], "twice"),
        ([replace(HOT, name="jobs")], "not 'jobs'"),
        ([replace(HOT, name="hot.er")], "lower-case"),
    ],
)
def test_invalid_lanes_are_refused(lanes: list[Lane], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        build("classic", (), lanes=lanes)


@pytest.mark.parametrize(
    ("delays", "complaint"), [((1, 1), "twice"), ((0,), "millisecond"), ((-1,), "millisecond")]
)
def test_invalid_retry_delays_are_refused(delays: tuple[float, ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        build("classic", (), retry_delays=delays)
