"""A broker that is unreachable or hangs, or a port without a broker: no accepted job is lost."""

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


async def publish_despite_locks(api: RunningApi) -> tuple[httpx.Response, float]:
    """Publish, repeatedly while the ledger is locked: API, worker and scheduler share one process
    here, and one of them may lock the ledger's file for longer than a request waits."""

    async def publish() -> tuple[httpx.Response, float] | None:
        answer, took = await timed_publish(api)
        is_refused = answer.status_code == 503
        is_locked = is_refused and answer.json()["type"] == "/problems/ledger-away"
        return None if is_locked else (answer, took)

    timed_answer: tuple[httpx.Response, float] = await eventually(
        publish, what="a turn at the ledger"
    )
    return timed_answer


async def test_connections_are_open_before_the_first_request_and_after_a_cut(
    system: System, broker310: TestBroker
) -> None:
    async with TcpProxy("127.0.0.1", broker310.node.amqp_port) as proxy:
        url = SecretStr(proxy.url(broker310.amqp_url))
        async with serving(system.settings, amqp_url=url) as api:
            await until_connected(api)  # before any request
            publisher = api.state.broker.publisher
            before = proxy.connections
            proxy.cut()
            await eventually(lambda: not publisher.is_connected or proxy.connections > before)
            await eventually(lambda: publisher.is_connected)
            assert (await api.client.post("/jobs", json=NOOP)).status_code == 202


@pytest.mark.chaos
@pytest.mark.long
async def test_a_stopped_broker_is_reported_at_once_and_accepted_jobs_run(
    system_on_own_node: tuple[LocalNode, System, RunningApi],
) -> None:
    node, system, api = system_on_own_node
    accepted: list[str] = []
    times: list[float] = []
    stopped = asyncio.Event()
    refused = 0

    async def publish() -> None:
        nonlocal refused
        after_stop = 0
        while after_stop < 10:
            answer, took = await publish_despite_locks(api)
            times.append(took)
            if answer.status_code == 202:
                accepted.append(answer.json()["job_id"])
            else:
                problem(answer, 503, "broker-away")
                assert int(answer.headers["retry-after"]) >= 1
                refused += 1
            after_stop += stopped.is_set()
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
    # Only the accepted jobs are recorded: refused ones have left nothing.
    counts = await system.ledger.job_reads.counts()
    assert set(counts["hot"]) == {State.SUCCEEDED}
    answer, _ = await publish_despite_locks(api)
    assert answer.status_code == 202


@pytest.mark.chaos
async def test_a_broker_that_hangs_is_reported_within_two_seconds(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with (
        TcpProxy("127.0.0.1", broker310.node.amqp_port) as proxy,
        open_system(broker310, sqlite_url, data_dir=tmp_path) as system,
        serving(system.settings, amqp_url=SecretStr(proxy.url(broker310.amqp_url))) as api,
    ):
        assert (await api.client.post("/jobs", json=NOOP)).status_code == 202
        proxy.pause()
        maybe_sent, took = await publish_despite_locks(api)
        assert took < MAX_SECONDS
        # The job may be on the broker: so it is recorded, and the answer says "pending".
        assert (maybe_sent.status_code, maybe_sent.json()["state"]) == (202, "pending")
        proxy.cut()  # new connections are accepted, but nothing answers on them

        times: list[float] = []

        async def is_refused() -> bool:
            answer, took = await publish_despite_locks(api)
            times.append(took)
            return answer.status_code == 503

        await eventually(is_refused)
        assert_prompt(times)
        proxy.resume()
        scheduler = await fast_scheduler(system)
        scheduling = asyncio.create_task(scheduler.run())
        await system.start_worker("llm")
        await system.wait_for_state(maybe_sent.json()["job_id"], State.SUCCEEDED)
        scheduler.stop()
        await scheduling


async def depths_refusal(api: RunningApi) -> httpx.Response | None:
    """Ask for the depths of the queues; return the answer if it is an error."""
    answer = await api.client.get("/backpressure")
    return None if answer.is_success else answer


PEERS = [
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
@pytest.mark.parametrize("peer", PEERS, ids=[peer.__name__ for peer in PEERS])
async def test_a_port_without_a_broker_is_reported_and_all_continues_when_the_broker_is_back(
    peer: peers.Peer, broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    """The port takes every connection, as that of a proxy or load balancer does."""
    async with (
        TcpProxy("127.0.0.1", broker310.node.amqp_port) as proxy,
        open_system(broker310, sqlite_url, data_dir=tmp_path) as system,
    ):
        broker_url: dict[str, Any] = {"amqp_url": SecretStr(proxy.url(broker310.amqp_url))}
        async with serving(system.settings, **broker_url) as api:
            feed = api.state.broker.feed
            worker = await system.start_worker("llm", **broker_url)
            scheduler = Scheduler(
                system.settings.model_copy(update=broker_url),
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
                    answer, took = await publish_despite_locks(api)
                    times.append(took)
                    if answer.status_code == 202:
                        maybe_sent.append(answer.json()["job_id"])
                        continue
                    problem(answer, 503, "broker-away")
                    assert int(answer.headers["retry-after"]) >= 1
                assert_prompt(times)
                # The depths are cached for a second.
                depths = await eventually(lambda: depths_refusal(api))
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
            event_seen = asyncio.Event()

            async def listen() -> None:
                async with api.client.stream("GET", "/events") as events:
                    async for line in events.aiter_lines():
                        if any(job_id in line for job_id in accepted):
                            event_seen.set()

            async def publish_until_seen() -> bool:
                answer, _ = await publish_despite_locks(api)
                if answer.status_code == 202:
                    accepted.append(answer.json()["job_id"])
                return event_seen.is_set()

            listening = asyncio.create_task(listen())
            # Several jobs: a worker without a connection drops its events.
            await eventually(publish_until_seen, what="an event")
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

    async def fails_first(feed: EventFeed, *arguments: Any) -> None:
        nonlocal failures
        if failures < 2:
            failures += 1
            raise StopAsyncIteration  # an error that nobody expects
        await listen(feed, *arguments)

    monkeypatch.setattr(EventFeed, "_listen", fails_first)
    async with serving(system.settings) as api:
        await eventually(api.state.broker.feed.is_listening.is_set)
    assert failures == 2
