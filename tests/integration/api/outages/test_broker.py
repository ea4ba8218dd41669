"""A broker that is away, hangs, or is something else: nothing is lost."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from switchyard.cli.system.rabbitmq_node import LocalNode
from switchyard.services.engine.monitoring.job_events import EventFeed
from switchyard.services.engine.records.states import State
from switchyard.services.engine.scheduler.duties import SchedulerIntervals
from switchyard.services.engine.scheduler.scheduler import Scheduler
from tests.integration.api.outages.answers import (
    MAX_SECONDS,
    NOOP,
    assert_prompt,
    fast_scheduler,
    timed_publish,
)
from tests.support import peers
from tests.support.api_server import RunningApi, problem, serving, until_connected
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.system import System, open_system
from tests.support.tcp_proxy import TcpProxy


async def publish_unlocked(api: RunningApi) -> tuple[httpx.Response, float]:
    """Publish, and again where the ledger was locked: with API, worker and scheduler in one process
    of a busy machine, one of them may hold its file for longer than a request waits."""

    async def publish() -> tuple[httpx.Response, float] | None:
        answer, took = await timed_publish(api)
        is_refused = answer.status_code == 503
        is_locked = is_refused and answer.json()["type"] == "/problems/ledger-away"
        return None if is_locked else (answer, took)

    found: tuple[httpx.Response, float] = await eventually(publish, what="a turn at the ledger")
    return found


async def test_the_first_request_finds_a_connection_and_so_does_the_first_after_a_cut(
    system: System, broker310: TestBroker
) -> None:
    async with TcpProxy("127.0.0.1", broker310.node.amqp_port) as proxy:
        url = SecretStr(proxy.url(broker310.amqp_url))
        async with serving(system.settings, amqp_url=url) as api:
            await until_connected(api)  # nobody has asked for anything yet
            publisher = api.state.broker.publisher
            before = proxy.connections
            proxy.cut()
            await eventually(lambda: not publisher.is_connected or proxy.connections > before)
            await eventually(lambda: publisher.is_connected)
            assert (await api.client.post("/jobs", json=NOOP)).status_code == 202


@pytest.mark.chaos
@pytest.mark.long
async def test_a_broker_that_stops_is_told_at_once_and_accepted_jobs_run(
    system_on_own_node: tuple[LocalNode, System, RunningApi],
) -> None:
    node, system, api = system_on_own_node
    accepted: list[str] = []
    times: list[float] = []
    stopped = asyncio.Event()
    refused = 0

    async def publish() -> None:
        nonlocal refused
        after = 0
        while after < 10:
            answer, took = await publish_unlocked(api)
            times.append(took)
            if answer.status_code == 202:
                accepted.append(answer.json()["job_id"])
            else:
                problem(answer, 503, "broker-away")
                assert int(answer.headers["retry-after"]) >= 1
                refused += 1
            after += stopped.is_set()
            await asyncio.sleep(0)

    publishing = [asyncio.create_task(publish()) for _ in range(4)]
    await eventually(lambda: len(accepted) > 50)
    await asyncio.to_thread(node.stop)
    stopped.set()
    await asyncio.gather(*publishing)
    assert refused > 0
    assert_prompt(times)
    ready = await api.client.get("/health/ready")
    assert (ready.status_code, ready.json()["components"]["broker"]["state"]) == (503, "away")
    assert ready.json()["components"]["ledger"]["state"] == "ok"
    problem(await api.client.get("/backpressure"), 503, "broker-away")
    assert (await api.client.get(f"/jobs/{accepted[0]}")).is_success

    await asyncio.to_thread(node.start)
    scheduler = await fast_scheduler(system)
    scheduling = asyncio.create_task(scheduler.run())
    await system.start_worker("llm")
    await system.wait_until_all(accepted, State.SUCCEEDED, timeout=60)
    scheduler.stop()
    await scheduling
    # What was refused has left nothing, and what was accepted is all there is.
    counts = await system.ledger.job_reads.counts()
    assert set(counts["hot"]) == {State.SUCCEEDED}
    answer, _ = await publish_unlocked(api)
    assert answer.status_code == 202


@pytest.mark.chaos
async def test_a_broker_that_hangs_is_told_within_two_seconds(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with (
        TcpProxy("127.0.0.1", broker310.node.amqp_port) as proxy,
        open_system(broker310, sqlite_url, data_dir=tmp_path) as system,
        serving(system.settings, amqp_url=SecretStr(proxy.url(broker310.amqp_url))) as api,
    ):
        assert (await api.client.post("/jobs", json=NOOP)).status_code == 202
        proxy.pause()
        maybe_sent, took = await publish_unlocked(api)
        assert took < MAX_SECONDS
        # It may be on the broker: so it is recorded, and said to be pending.
        assert (maybe_sent.status_code, maybe_sent.json()["state"]) == (202, "pending")
        proxy.cut()  # connections can be opened, but nobody answers on them

        times: list[float] = []

        async def not_sent() -> bool:
            answer, took = await publish_unlocked(api)
            times.append(took)
            return answer.status_code == 503

        await eventually(not_sent)
        assert_prompt(times)
        proxy.resume()
        scheduler = await fast_scheduler(system)
        scheduling = asyncio.create_task(scheduler.run())
        await system.start_worker("llm")
        await system.wait_for_state(maybe_sent.json()["job_id"], State.SUCCEEDED)
        scheduler.stop()
        await scheduling


async def refused_depths(api: RunningApi) -> httpx.Response | None:
    answer = await api.client.get("/backpressure")
    return None if answer.is_success else answer


PORTS = [
    peers.closes,
    peers.resets,
    peers.sends_garbage,
    peers.sends_half_a_greeting,
    peers.closes_after_the_tune,
    peers.closes_once_open,
    peers.knows_no_confirms,
    peers.says_nothing,
]


@pytest.mark.chaos
@pytest.mark.parametrize("peer", PORTS, ids=[peer.__name__ for peer in PORTS])
async def test_a_port_behind_which_is_no_broker_is_told_and_all_goes_on_when_it_is_back(
    peer: peers.Peer, broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    """As a proxy or load balancer does: it takes every connection, whatever is behind it."""
    async with (
        TcpProxy("127.0.0.1", broker310.node.amqp_port) as proxy,
        open_system(broker310, sqlite_url, data_dir=tmp_path) as system,
    ):
        away: dict[str, Any] = {"amqp_url": SecretStr(proxy.url(broker310.amqp_url))}
        async with serving(system.settings, **away) as api:
            feed = api.state.broker.feed
            worker = await system.start_worker("llm", **away)
            scheduler = Scheduler(
                system.settings.model_copy(update=away),
                system.registry,
                system.ledger,
                intervals=SchedulerIntervals(turn=0.1, pending=0.5),
            )
            scheduling = asyncio.create_task(scheduler.run())
            await eventually(feed.is_listening.is_set)
            maybe_sent: list[str] = []
            proxy.refuse()
            with peers.listening(peer, proxy.port):
                proxy.cut()
                await eventually(lambda: not feed.is_listening.is_set())
                times: list[float] = []
                for _ in range(6):
                    answer, took = await publish_unlocked(api)
                    times.append(took)
                    if answer.status_code == 202:
                        maybe_sent.append(answer.json()["job_id"])
                        continue
                    problem(answer, 503, "broker-away")
                    assert int(answer.headers["retry-after"]) >= 1
                assert_prompt(times)
                depths = await eventually(lambda: refused_depths(api))  # known for a second
                problem(depths, 503, "broker-away")
                ready = await api.client.get("/health/ready")
                states = {name: part["state"] for name, part in ready.json()["components"].items()}
                assert ready.status_code == 503
                assert states == {
                    "broker": "away", "events": "away", "ledger": "ok", "storage": "ok",
                }  # fmt: skip
            await proxy.accept()
            await eventually(feed.is_listening.is_set, what="the event feed")
            await worker.consuming()
            accepted: list[str] = []
            heard = asyncio.Event()

            async def listen() -> None:
                async with api.client.stream("GET", "/events") as events:
                    async for line in events.aiter_lines():
                        if any(job_id in line for job_id in accepted):
                            heard.set()

            async def publish_and_hear() -> bool:
                answer, _ = await publish_unlocked(api)
                if answer.status_code == 202:
                    accepted.append(answer.json()["job_id"])
                return heard.is_set()

            listening = asyncio.create_task(listen())
            # Several: a worker's first events find it without a connection, and are left out.
            await eventually(publish_and_hear, what="an event")
            listening.cancel()
            await system.wait_until_all([*accepted, *maybe_sent], State.SUCCEEDED, timeout=30)
            assert not scheduling.done()
            scheduler.stop()
            await scheduling


async def test_an_event_feed_that_has_failed_is_started_again(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen = EventFeed._listen
    failures = 0

    async def fails_first(feed: EventFeed, *heard: Any) -> None:
        nonlocal failures
        if failures < 2:
            failures += 1
            raise StopAsyncIteration  # whatever a library may come up with
        await listen(feed, *heard)

    monkeypatch.setattr(EventFeed, "_listen", fails_first)
    async with serving(system.settings) as api:
        await eventually(api.state.broker.feed.is_listening.is_set)
    assert failures == 2
