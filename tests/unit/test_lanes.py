"""Lanes, and the names of their routing keys, queues and retry levels."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.broker.lanes import (
    LANES,
    RETRY_DELAYS,
    Route,
    lane_named,
    lane_of,
    queue_name,
    retry_name,
    split_routing_key,
)

parts = st.text(st.characters(exclude_characters=".", exclude_categories=["Cs"]), min_size=1)


def test_lanes_are_those_of_requirement_t1() -> None:
    limits = {
        lane.name: (lane.default_priority, lane.ttl_seconds, lane.max_length) for lane in LANES
    }
    assert limits == {
        "hot": (10, 3600, 1000),
        "vlm_ocr": (5, 4 * 3600, 100),
        "maintenance": (2, 48 * 3600, 1000),
        "backfill": (1, 24 * 3600, 10_000),
    }
    assert [lane.name for lane in LANES if lane.dead_letters_overflow] == ["hot"]


def test_lanes_are_ordered_by_urgency() -> None:
    priorities = [lane.default_priority for lane in LANES]
    assert priorities == sorted(priorities, reverse=True)


@given(parts, parts)
def test_a_routing_key_is_split_into_lane_and_job_type(lane: str, job_type: str) -> None:
    assert split_routing_key(f"{lane}.{job_type}") == (lane, job_type)
    assert lane_of(f"{lane}.{job_type}") == lane


@pytest.mark.parametrize("key", ["", ".", "hot", "hot.", ".crawl", "hot.crawl.now", "hot..crawl"])
def test_an_invalid_routing_key_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=r"<lane>\.<job_type>"):
        split_routing_key(key)


def test_a_route_names_its_key_and_its_queue() -> None:
    route = Route("hot", "summarize_content", "llm")
    assert route.routing_key == "hot.summarize_content"
    assert route.queue == "hot.llm" == queue_name("hot", "llm")
    assert lane_of(route.queue) == "hot"


@pytest.mark.parametrize(
    ("seconds", "name"),
    [
        (5, "jobs.retry.5s"),
        (300.0, "jobs.retry.300s"),
        (0.2, "jobs.retry.200ms"),
        (1.5, "jobs.retry.1500ms"),
    ],
)
def test_a_retry_level_is_named_by_its_delay(seconds: float, name: str) -> None:
    assert retry_name(seconds) == name


def test_retry_levels_double_up_to_five_minutes() -> None:
    assert RETRY_DELAYS == (5, 10, 20, 40, 80, 160, 300)
    assert len({retry_name(delay) for delay in RETRY_DELAYS}) == len(RETRY_DELAYS)


def test_a_lane_is_found_by_its_name() -> None:
    assert [lane_named(lane.name) for lane in LANES] == list(LANES)
    with pytest.raises(ValueError, match="'warm': choose one of hot, vlm_ocr, maintenance, back"):
        lane_named("warm")
