"""Broker or ledger away, and an API that dies between record and publish: nothing is lost."""

import asyncio
import hashlib
import json
import sqlite3
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from switchyard.cli.system.node import LocalNode
from switchyard.services.documents.runs import run_id
from switchyard.services.jobs.registry import BUILT_IN_MODULES
from switchyard.services.monitoring.job_events import EventFeed
from switchyard.services.publishing.preparing import JobRequest, prepare
from switchyard.services.publishing.publisher import Published
from switchyard.services.records import JobFilter, State
from switchyard.services.scheduler.scheduler import Pace, Scheduler
from switchyard.services.workers.stages import document_id_of
from tests.integration.api.document_server import send
from tests.support import peers
from tests.support.api_server import (
    RunningApi,
    api_process,
    connected,
    environment_of,
    problem,
    serving,
)
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.jobs import journal
from tests.support.postgres import PostgresServer
from tests.support.system import JOB_MODULES, System, open_system
from tests.support.tcp_proxy import TcpProxy

NOOP = {"routing_key": "hot.noop"}
WITHIN = 2.0
"""Seconds, as promised: what at least every second answer takes on a machine with other work."""
AT_MOST = 10.0
"""Seconds that no answer takes, however busy the machine: what hangs takes thirty."""


@pytest.fixture
async def mortal(
    own_node: Callable[..., LocalNode], sqlite_url: str, tmp_path: Path
) -> AsyncIterator[tuple[LocalNode, System, RunningApi]]:
    """A system on a broker that may be stopped, and its API."""
    node = own_node()
    broker = TestBroker("3.10", "classic", "/", node)
    async with (
        open_system(broker, sqlite_url, data_dir=tmp_path) as system,
        serving(system.settings) as api,
    ):
        await connected(api)
        assert (await api.client.post("/jobs", json=NOOP)).status_code == 202
        yield node, system, api


async def timed_publish(api: RunningApi) -> tuple[httpx.Response, float]:
    began = time.monotonic()
    answer = await api.client.post("/jobs", json=NOOP)
    return answer, time.monotonic() - began


def assert_prompt(times: list[float]) -> None:
    """That answers come soon, in seconds."""
    assert statistics.median(times) < WITHIN
    assert max(times) < AT_MOST


async def heal(system: System, pending: float = 0.5) -> Scheduler:
    """A scheduler that steps in soon."""
    return Scheduler(
        system.settings, system.registry, system.ledger, pace=Pace(turn=0.1, pending=pending)
    )


async def test_the_first_request_finds_a_connection_and_so_does_the_first_after_a_cut(
    system: System, broker310: TestBroker
) -> None:
    async with TcpProxy("127.0.0.1", broker310.node.amqp_port) as proxy:
        url = SecretStr(proxy.url(broker310.amqp_url))
        async with serving(system.settings, amqp_url=url) as api:
            await connected(api)  # nobody has asked for anything yet
            publisher = api.state.broker.publisher
            before = proxy.connections
            proxy.cut()
            await eventually(lambda: not publisher.is_connected or proxy.connections > before)
            await eventually(lambda: publisher.is_connected)
            assert (await api.client.post("/jobs", json=NOOP)).status_code == 202


@pytest.mark.chaos
@pytest.mark.long
async def test_a_broker_that_stops_is_told_at_once_and_accepted_jobs_run(
    mortal: tuple[LocalNode, System, RunningApi],
) -> None:
    node, system, api = mortal
    accepted: list[str] = []
    times: list[float] = []
    stopped = asyncio.Event()
    refused = 0

    async def publish() -> None:
        nonlocal refused
        after = 0
        while after < 10:
            answer, took = await timed_publish(api)
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
    scheduler = await heal(system)
    scheduling = asyncio.create_task(scheduler.run())
    await system.start_worker("llm")
    await system.wait_until_all(accepted, State.SUCCEEDED, timeout=60)
    scheduler.stop()
    await scheduling
    # What was refused has left nothing, and what was accepted is all there is.
    counts = await system.ledger.counts()
    assert set(counts["hot"]) == {State.SUCCEEDED}
    answer, _ = await timed_publish(api)
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
        maybe_sent, took = await timed_publish(api)
        assert took < AT_MOST
        # It may be on the broker: so it is recorded, and said to be pending.
        assert (maybe_sent.status_code, maybe_sent.json()["state"]) == (202, "pending")
        proxy.cut()  # connections can be opened, but nobody answers on them

        times: list[float] = []

        async def not_sent() -> bool:
            answer, took = await timed_publish(api)
            times.append(took)
            return answer.status_code == 503

        await eventually(not_sent)
        assert_prompt(times)
        proxy.resume()
        scheduler = await heal(system)
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
                pace=Pace(turn=0.1, pending=0.5),
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
                    answer, took = await timed_publish(api)
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
            await eventually(feed.is_listening.is_set, 15, "the event feed")
            await worker.consuming()
            accepted: list[str] = []
            heard = asyncio.Event()

            async def listen() -> None:
                async with api.client.stream("GET", "/events") as events:
                    async for line in events.aiter_lines():
                        if any(job_id in line for job_id in accepted):
                            heard.set()

            async def publish_and_hear() -> bool:
                answer, _ = await timed_publish(api)
                if answer.status_code == 202:
                    accepted.append(answer.json()["job_id"])
                return heard.is_set()

            listening = asyncio.create_task(listen())
            # Several: a worker's first events find it without a connection, and are left out.
            await eventually(publish_and_hear, 15, "an event")
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
        await eventually(api.state.broker.feed.is_listening.is_set, 10)
    assert failures == 2


@pytest.mark.chaos
@pytest.mark.long
async def test_an_alarm_is_told_at_once_and_leaves_nothing(
    mortal: tuple[LocalNode, System, RunningApi],
) -> None:
    node, system, api = mortal
    before = len((await system.ledger.list_jobs()).items)
    async with alarm(node):
        pending = 0
        times: list[float] = []
        async with asyncio.timeout(30):
            while True:
                answer, took = await timed_publish(api)
                times.append(took)
                if answer.status_code == 503:
                    break
                pending += 1
        assert_prompt(times)
        problem(answer, 503, "broker-away")
        assert len((await system.ledger.list_jobs()).items) == before + pending


@asynccontextmanager
async def alarm(node: LocalNode) -> AsyncIterator[None]:
    """A memory alarm, for as long as that."""
    watermark = partial(asyncio.to_thread, node.rabbitmqctl, "set_vm_memory_high_watermark")
    await watermark("0.0000001")
    try:
        yield
    finally:
        await watermark("0.4")


@pytest.mark.chaos
@pytest.mark.long
async def test_what_was_accepted_during_an_alarm_is_accepted_whoever_asks_again_and_runs_once(
    own_node: Callable[..., LocalNode], database_url: str, tmp_path: Path
) -> None:
    node = own_node()
    broker = TestBroker("3.10", "classic", "/", node)
    async with (
        open_system(
            broker, database_url, data_dir=tmp_path, modules=(*BUILT_IN_MODULES, *JOB_MODULES)
        ) as system,
        serving(system.settings) as api,
        serving(system.settings) as other,
    ):
        assert (await api.client.post("/jobs", json=NOOP)).status_code == 202
        body = {"routing_key": "hot.noop", "payload": {"n": 7}}
        key = {"Idempotency-Key": "k"}
        async with alarm(node):
            first = await api.client.post("/jobs", json=body, headers=key)
            assert (first.status_code, first.json()["state"]) == (202, "pending"), first.text
            job_id = first.json()["job_id"]
            problem(await api.client.post("/jobs", json=body), 503, "broker-away")
            for door in (api, api, other):
                again = await door.client.post("/jobs", json=body, headers=key)
                assert again.status_code == 202, again.text
                told = again.json()
                assert (told["job_id"], told["state"]) == (job_id, "pending")
                assert told["duplicate"]
            by_command = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "switchyard.cli.main", "publish", "hot.noop", "--json"),
                *("--payload", '{"n": 7}', "--key", "k"),
                env=environment_of(system.settings),
                stdout=asyncio.subprocess.PIPE,
            )
            printed, _ = await by_command.communicate()
            assert (by_command.returncode, json.loads(printed)["job_id"]) == (0, job_id)
            batch = await system.jobs.publish_many(
                [JobRequest("hot.noop", {"n": 7}, idempotency_key="k")] * 2
            )
            assert [each.duplicate for each in batch if isinstance(each, Published)] == [True] * 2

            text = b"# The tide\n\nIt rises twice a day, and nobody is asked."
            sent = [await send(api.client, text, name="tide.md") for _ in range(2)]
            codes = [each.status_code for each in sent]
            listed = (await system.ledger.list_jobs(JobFilter(job_type="ingest_document"))).items
            waiting = list((tmp_path / "files" / "uploads" / "incoming").iterdir())
            # Refused, it has left neither a job nor a file.
            assert (codes, listed, waiting) == ([503, 503], (), [])
            document = prepare_pending_upload(tmp_path, text)
            new = prepare(system.registry, document)
            await system.ledger.record(new)
            again = await send(api.client, text, name="tide.md")
            assert (again.status_code, again.json()["duplicate"]) == (200, True), again.text
            # The file of the one that was accepted is there, and that of the other is not.
            (kept,) = (tmp_path / "files" / "uploads" / "incoming").iterdir()
            assert kept.name == "accepted"
        scheduler = await heal(system)
        scheduling = asyncio.create_task(scheduler.run())
        await system.start_worker("llm")
        await system.start_worker("ingest")
        await system.wait_for_state(job_id, State.SUCCEEDED, timeout=60)
        await system.wait_for_state(new.message.job_id, State.SUCCEEDED, timeout=60)
        scheduler.stop()
        await scheduling
        await system.stop_workers()
        assert journal.runs(job_id) == 1


def prepare_pending_upload(directory: Path, content: bytes) -> JobRequest:
    """A document that was accepted before, whose job the broker has still to confirm."""
    (directory / "files" / "uploads" / "incoming" / "accepted").write_bytes(content)
    document_id = document_id_of(hashlib.sha256(content).hexdigest())
    return JobRequest(
        "hot.ingest_document",
        {"key": "uploads/incoming/accepted", "filename": "tide.md"},
        source="api",
        job_id=run_id(document_id),
    )


@pytest.mark.chaos
async def test_a_ledger_that_is_away_is_told(
    broker310: TestBroker, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    url = postgres_server.create_database()
    async with (
        open_system(broker310, url, data_dir=tmp_path) as system,
        serving(system.settings) as api,
    ):
        assert (await api.client.post("/jobs", json=NOOP)).status_code == 202
        await asyncio.to_thread(postgres_server.stop)
        try:
            for answer in (
                await api.client.post("/jobs", json=NOOP),
                await api.client.get("/jobs"),
                await api.client.delete("/jobs/x"),
            ):
                problem(answer, 503, "ledger-away")
                assert int(answer.headers["retry-after"]) >= 1
            ready = (await api.client.get("/health/ready")).json()
            assert ready["components"]["ledger"]["state"] == "away"
        finally:
            await asyncio.to_thread(postgres_server.start)

        async def back() -> bool:
            return (await api.client.post("/jobs", json=NOOP)).status_code == 202

        await eventually(back)


async def test_a_ledger_that_is_frozen_is_told_within_two_seconds(
    broker310: TestBroker, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    url = postgres_server.create_database()
    async with (
        open_system(broker310, url, data_dir=tmp_path) as system,
        serving(system.settings) as api,
    ):
        assert (await api.client.post("/jobs", json=NOOP)).status_code == 202
        await asyncio.to_thread(postgres_server.pause)
        try:
            answers = [await timed_publish(api) for _ in range(3)]
        finally:
            await asyncio.to_thread(postgres_server.resume)
        for answer, _ in answers:
            problem(answer, 503, "ledger-away")
        assert_prompt([took for _, took in answers])

        async def back() -> bool:
            return (await api.client.post("/jobs", json=NOOP)).status_code == 202

        await eventually(back)


async def test_a_ledger_that_is_locked_is_told_within_two_seconds(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    async with (
        open_system(broker310, sqlite_url, data_dir=tmp_path) as system,
        serving(system.settings) as api,
    ):
        assert (await api.client.post("/jobs", json=NOOP)).status_code == 202
        with closing(sqlite3.connect(sqlite_url.partition("///")[2])) as other:
            other.isolation_level = None
            other.execute("BEGIN IMMEDIATE")
            answers = [await timed_publish(api) for _ in range(3)]
            other.execute("ROLLBACK")
        for answer, _ in answers:
            problem(answer, 503, "ledger-away")
        assert_prompt([took for _, took in answers])
        assert (await api.client.post("/jobs", json=NOOP)).status_code == 202


DIES_AFTER_RECORD = """
import os
from switchyard.services.ledger import Ledger
record_many = Ledger.record_many
async def and_die(self, jobs):
    await record_many(self, jobs)
    os.kill(os.getpid(), 9)
Ledger.record_many = and_die
from switchyard.cli.main import main
main()
"""


@pytest.mark.chaos
async def test_an_api_killed_between_record_and_publish_loses_no_job(
    broker310: TestBroker, database_url: str, tmp_path: Path
) -> None:
    async with open_system(broker310, database_url, data_dir=tmp_path) as system:
        async with (
            api_process(system.settings, tmp_path / "api.log", code=DIES_AFTER_RECORD) as api,
            httpx.AsyncClient(trust_env=False) as client,
        ):
            with pytest.raises(httpx.TransportError):
                await client.post(f"{api.url}/jobs", json=NOOP)
        (left,) = (await system.ledger.list_jobs(JobFilter(state=State.PENDING))).items
        assert await system.ready("hot.llm") == 0
        scheduler = await heal(system)
        scheduling = asyncio.create_task(scheduler.run())
        await system.start_worker("llm")
        await system.wait_for_state(left.id, State.SUCCEEDED)
        scheduler.stop()
        await scheduling
