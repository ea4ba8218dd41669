"""Following jobs over server-sent events."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import httpx
import pytest

from switchyard.services.engine.monitoring.job_events import (
    BACKLOG,
    MAX_REMEMBERED,
    MAX_REMEMBERED_BYTES,
    EventFeed,
    JobEvent,
)
from switchyard.services.engine.records.states import State
from tests.support.api_server import RunningApi, problem, serving
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.system import System

MAX_WAIT = 15.0
"""Seconds in which a stream has sent what a test waits for."""


async def frames(answer: httpx.Response) -> AsyncGenerator[dict[str, Any]]:
    """Yield the events of a stream: `id`, `event`, and `data` as JSON; skip comments."""
    frame: dict[str, Any] = {}
    async for line in answer.aiter_lines():
        if not line:
            if "event" in frame:
                yield frame
            frame = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            frame[name] = json.loads(value) if name == "data" else value


async def collect(
    api: RunningApi,
    path: str,
    *,
    until: str | None = None,
    received: list[dict[str, Any]] | None = None,
    last_id: str | None = None,
) -> list[dict[str, Any]]:
    """Return the events of a stream, to its end or the first event named `until`; add them to
    `received` as they come."""
    received = [] if received is None else received
    headers = {} if last_id is None else {"Last-Event-ID": last_id}
    async with (
        asyncio.timeout(MAX_WAIT),
        api.client.stream("GET", path, headers=headers) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        async with aclosing(frames(answer)) as stream:
            async for frame in stream:
                received.append(frame)
                if frame["event"] == until:
                    break
    return received


async def wait_for_feed(api: RunningApi) -> None:
    await eventually(api.state.broker.feed.is_listening.is_set, what="the event feed")


async def wait_for_streams(api: RunningApi, count: int) -> None:
    await eventually(lambda: api.state.broker.feed.subscribers == count, what=f"{count} streams")


async def follow(api: RunningApi, job_id: str) -> asyncio.Task[list[dict[str, Any]]]:
    """Begin to read a job's stream to its end, and wait for its first event, the job's state."""
    received: list[dict[str, Any]] = []
    following = asyncio.create_task(collect(api, f"/jobs/{job_id}/events", received=received))
    await eventually(lambda: received or following.done(), MAX_WAIT, "the first event")
    return following


async def test_a_job_is_followed_to_its_end(system: System, api: RunningApi) -> None:
    await wait_for_feed(api)
    await system.start_worker("llm")
    job_id = await system.publish("hot.gated")
    await journal.started(job_id)
    following = await follow(api, job_id)
    journal.release(job_id)
    received = await following
    assert [each["event"] for each in received][-2:] == ["succeeded", "end"]
    assert received[0]["event"] == "state"
    assert received[-1]["data"]["state"] == "succeeded"
    await wait_for_streams(api, 0)


async def test_the_stream_of_an_ended_job_ends_at_once(system: System, api: RunningApi) -> None:
    await system.start_worker("llm")
    job_id = await system.publish("hot.noop")
    await system.wait_for_state(job_id, State.SUCCEEDED)
    received = await collect(api, f"/jobs/{job_id}/events")
    assert [each["event"] for each in received] == ["state", "end"]


async def test_cancelling_a_job_that_waits_ends_its_stream(system: System, api: RunningApi) -> None:
    await wait_for_feed(api)
    job_id = (await api.client.post("/jobs", json={"routing_key": "hot.noop"})).json()["job_id"]
    following = await follow(api, job_id)
    await api.client.delete(f"/jobs/{job_id}")
    received = await following
    assert [each["event"] for each in received] == ["state", "cancelled", "end"]


async def test_an_end_without_an_event_is_seen_in_the_ledger(system: System) -> None:
    async with serving(system.settings, api_heartbeat=0.2) as api:
        job_id = await system.publish("hot.noop")
        following = await follow(api, job_id)
        await system.ledger.jobs.cancel(job_id, 1.0)  # without an event
        received = await following
        assert [each["event"] for each in received] == ["state", "end"]


async def test_the_stream_of_all_jobs_is_filtered(system: System, api: RunningApi) -> None:
    await wait_for_feed(api)
    await system.start_worker("llm")
    following = asyncio.create_task(
        collect(api, "/events?lane=backfill&job_type=noop", until="succeeded")
    )
    await wait_for_streams(api, 1)
    await system.publish("hot.noop")
    await system.publish("backfill.scripted", {"steps": ["done"]})
    job_id = await system.publish("backfill.noop")
    received = await following
    assert {each["data"]["job_id"] for each in received} == {job_id}
    assert [each["event"] for each in received] == ["started", "succeeded"]


async def test_a_client_continues_after_the_last_event_it_received(
    system: System, api: RunningApi
) -> None:
    await wait_for_feed(api)
    await system.start_worker("llm")
    following = asyncio.create_task(collect(api, "/events", until="succeeded"))
    await wait_for_streams(api, 1)
    first = await system.publish("hot.noop")
    before = await following
    second = await system.publish("hot.noop")
    await system.wait_for_state(second, State.SUCCEEDED)

    missed = await collect(api, "/events", until="succeeded", last_id=before[-1]["id"])
    assert {each["data"]["job_id"] for each in missed} == {second}
    again = await collect(api, "/events", until="succeeded", last_id=before[0]["id"])
    assert again[0]["data"]["job_id"] == first
    lost = await collect(api, "/events", until="succeeded", last_id="1-none")
    assert lost[0]["event"] == "gap"
    assert lost[1]["data"]["job_id"] == first
    # An empty Last-Event-ID means that the client has received, and missed, no event.
    state, *_ = await collect(api, f"/jobs/{second}/events", last_id="")
    assert state["event"] == "state"
    fresh = asyncio.create_task(collect(api, "/events", until="succeeded", last_id=""))
    await wait_for_streams(api, 1)
    third = await system.publish("hot.noop")
    assert {each["data"]["job_id"] for each in await fresh} == {third}


async def test_event_ids_are_the_same_in_every_process(system: System, api: RunningApi) -> None:
    async with serving(system.settings) as other:
        await wait_for_feed(api)
        await wait_for_feed(other)
        await system.start_worker("llm")
        streams = [
            asyncio.create_task(collect(each, "/events", until="succeeded"))
            for each in (api, other)
        ]
        await wait_for_streams(api, 1)
        await wait_for_streams(other, 1)
        await system.publish("hot.noop")
        first_events, second_events = await asyncio.gather(*streams)
        assert [each["id"] for each in first_events] == [each["id"] for each in second_events]


async def test_an_idle_stream_gives_signs_of_life(system: System) -> None:
    async with (
        serving(system.settings, api_heartbeat=0.1) as api,
        asyncio.timeout(MAX_WAIT),
        api.client.stream("GET", "/events") as answer,
    ):
        comments = 0
        async for line in answer.aiter_lines():
            comments += line.startswith(":")
            if comments == 3:
                break


async def test_streams_of_clients_that_disconnect_are_closed(api: RunningApi) -> None:
    streams = [asyncio.create_task(collect(api, "/events")) for _ in range(20)]
    await wait_for_streams(api, 20)
    for each in streams:
        each.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    await wait_for_streams(api, 0)


async def test_the_number_of_streams_is_limited(system: System) -> None:
    async with serving(system.settings, api_max_streams=1) as api:
        stream = asyncio.create_task(collect(api, "/events"))
        await wait_for_streams(api, 1)
        answer = await api.client.get("/events")
        problem(answer, 503, "too-many-streams")
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)


async def test_a_stop_ends_open_streams(system: System) -> None:
    async with serving(system.settings) as api:
        stream = asyncio.create_task(collect(api, "/events"))
        await wait_for_streams(api, 1)
        async with asyncio.timeout(30):
            await api.stop()
            assert await stream == []


async def test_a_slow_client_is_cut_off_and_memory_is_bounded(system: System) -> None:
    feed = EventFeed(system.settings, remembered=10)
    with feed.subscribe(lambda event: True) as subscription:
        for number in range(BACKLOG + 1):
            feed.deliver(JobEvent(f"{number}-x", "started", "job", number / 1e6, b"{}"))
        assert subscription.is_over
        assert await subscription.next(0) is None
    events, complete = feed.since(f"{BACKLOG - 20}-x")
    assert (len(events), complete) == (10, False)
    assert feed.subscribers == 0


async def test_memory_of_events_is_bounded_in_bytes_whatever_they_hold(system: System) -> None:
    feed = EventFeed(system.settings)
    body = b'{"event": "started", "job_id": "job", "at": %d, "x": [%s[]]}'
    with feed.subscribe(lambda event: True) as fast, feed.subscribe(lambda event: True) as slow:
        for number in range(MAX_REMEMBERED):
            event = JobEvent.from_body(body % (number, b"[]," * 5_000))
            feed.deliver(event)
            assert await fast.next(0) == event
            await asyncio.sleep(0)  # other callbacks of the loop have their turn, as in the API
        assert not fast.is_over
        assert slow.is_over
    events, complete = feed.since("0-x")
    assert not complete
    assert (
        MAX_REMEMBERED_BYTES * 0.9 < sum(len(each.body) for each in events) <= MAX_REMEMBERED_BYTES
    )
    assert events[-1].fields["x"][0] == []


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"event": "x", "job_id": 1, "at": "y"}',
        b'{"event": "' + b"x" * 33 + b'", "job_id": "a", "at": 1}',
    ],
)
def test_an_invalid_event_is_rejected(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - JSON's own, or ours
        JobEvent.from_body(body)
