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


async def frames(answer: httpx.Response) -> AsyncGenerator[dict[str, Any]]:
    """The events of a stream: `id`, `event`, and `data` as JSON; comments are left out."""
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
    found: list[dict[str, Any]] | None = None,
    last_id: str | None = None,
) -> list[dict[str, Any]]:
    """What a stream sends, to its end or the first event of that name; in `found` as it comes."""
    found = [] if found is None else found
    headers = {} if last_id is None else {"Last-Event-ID": last_id}
    async with (
        asyncio.timeout(MAX_WAIT),
        api.client.stream("GET", path, headers=headers) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        async with aclosing(frames(answer)) as coming:
            async for frame in coming:
                found.append(frame)
                if frame["event"] == until:
                    break
    return found


async def listening(api: RunningApi) -> None:
    await eventually(api.state.broker.feed.is_listening.is_set, what="the event feed")


async def subscribers(api: RunningApi, count: int) -> None:
    await eventually(lambda: api.state.broker.feed.subscribers == count, what=f"{count} streams")


async def follow(api: RunningApi, job_id: str) -> asyncio.Task[list[dict[str, Any]]]:
    """What the job's stream sends to its end; it has told already how the job stands."""
    found: list[dict[str, Any]] = []
    following = asyncio.create_task(collect(api, f"/jobs/{job_id}/events", found=found))
    await eventually(lambda: found or following.done(), MAX_WAIT, "the first event")
    return following


async def test_a_job_is_followed_to_its_end(system: System, api: RunningApi) -> None:
    await listening(api)
    await system.start_worker("llm")
    job_id = await system.publish("hot.gated")
    await journal.started(job_id)
    following = await follow(api, job_id)
    journal.release(job_id)
    found = await following
    assert [each["event"] for each in found][-2:] == ["succeeded", "end"]
    assert found[0]["event"] == "state"
    assert found[-1]["data"]["state"] == "succeeded"
    await subscribers(api, 0)


async def test_a_job_that_has_ended_is_told_at_once(system: System, api: RunningApi) -> None:
    await system.start_worker("llm")
    job_id = await system.publish("hot.noop")
    await system.wait_for_state(job_id, State.SUCCEEDED)
    found = await collect(api, f"/jobs/{job_id}/events")
    assert [each["event"] for each in found] == ["state", "end"]


async def test_cancelling_a_job_that_waits_ends_its_stream(system: System, api: RunningApi) -> None:
    await listening(api)
    job_id = (await api.client.post("/jobs", json={"routing_key": "hot.noop"})).json()["job_id"]
    following = await follow(api, job_id)
    await api.client.delete(f"/jobs/{job_id}")
    found = await following
    assert [each["event"] for each in found] == ["state", "cancelled", "end"]


async def test_an_end_without_an_event_is_seen_in_the_ledger(system: System) -> None:
    async with serving(system.settings, api_heartbeat=0.2) as api:
        job_id = await system.publish("hot.noop")
        following = await follow(api, job_id)
        await system.ledger.jobs.cancel(job_id, 1.0)  # nobody says so on the exchange
        found = await following
        assert [each["event"] for each in found] == ["state", "end"]


async def test_the_stream_of_all_jobs_is_filtered(system: System, api: RunningApi) -> None:
    await listening(api)
    await system.start_worker("llm")
    following = asyncio.create_task(
        collect(api, "/events?lane=backfill&job_type=noop", until="succeeded")
    )
    await subscribers(api, 1)
    await system.publish("hot.noop")
    await system.publish("backfill.scripted", {"steps": ["done"]})
    job_id = await system.publish("backfill.noop")
    found = await following
    assert {each["data"]["job_id"] for each in found} == {job_id}
    assert [each["event"] for each in found] == ["started", "succeeded"]


async def test_a_client_goes_on_after_the_last_event_it_saw(
    system: System, api: RunningApi
) -> None:
    await listening(api)
    await system.start_worker("llm")
    following = asyncio.create_task(collect(api, "/events", until="succeeded"))
    await subscribers(api, 1)
    first = await system.publish("hot.noop")
    seen = await following
    second = await system.publish("hot.noop")
    await system.wait_for_state(second, State.SUCCEEDED)

    missed = await collect(api, "/events", until="succeeded", last_id=seen[-1]["id"])
    assert {each["data"]["job_id"] for each in missed} == {second}
    again = await collect(api, "/events", until="succeeded", last_id=seen[0]["id"])
    assert again[0]["data"]["job_id"] == first
    lost = await collect(api, "/events", until="succeeded", last_id="1-none")
    assert lost[0]["event"] == "gap"
    assert lost[1]["data"]["job_id"] == first
    # Who has seen none, and says so, has missed nothing.
    state, *_ = await collect(api, f"/jobs/{second}/events", last_id="")
    assert state["event"] == "state"
    fresh = asyncio.create_task(collect(api, "/events", until="succeeded", last_id=""))
    await subscribers(api, 1)
    third = await system.publish("hot.noop")
    assert {each["data"]["job_id"] for each in await fresh} == {third}


async def test_another_process_knows_the_same_ids(system: System, api: RunningApi) -> None:
    async with serving(system.settings) as other:
        await listening(api)
        await listening(other)
        await system.start_worker("llm")
        streams = [
            asyncio.create_task(collect(each, "/events", until="succeeded"))
            for each in (api, other)
        ]
        await subscribers(api, 1)
        await subscribers(other, 1)
        await system.publish("hot.noop")
        one, two = await asyncio.gather(*streams)
        assert [each["id"] for each in one] == [each["id"] for each in two]


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


async def test_nothing_is_left_of_clients_that_went_away(api: RunningApi) -> None:
    streams = [asyncio.create_task(collect(api, "/events")) for _ in range(20)]
    await subscribers(api, 20)
    for each in streams:
        each.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    await subscribers(api, 0)


async def test_there_is_a_limit_to_streams(system: System) -> None:
    async with serving(system.settings, api_max_streams=1) as api:
        stream = asyncio.create_task(collect(api, "/events"))
        await subscribers(api, 1)
        answer = await api.client.get("/events")
        problem(answer, 503, "too-many-streams")
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)


async def test_a_stop_ends_open_streams(system: System) -> None:
    async with serving(system.settings) as api:
        stream = asyncio.create_task(collect(api, "/events"))
        await subscribers(api, 1)
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
    said = b'{"event": "started", "job_id": "job", "at": %d, "x": [%s[]]}'
    with feed.subscribe(lambda event: True) as fast, feed.subscribe(lambda event: True) as slow:
        for number in range(MAX_REMEMBERED):
            event = JobEvent.from_body(said % (number, b"[]," * 5_000))
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
def test_what_is_no_event_is_told_apart(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - JSON's own, or ours
        JobEvent.from_body(body)
