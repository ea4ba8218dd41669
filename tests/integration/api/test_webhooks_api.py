"""Webhooks: a signed delivery of another system becomes one job, however often it is sent."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from switchyard.services.common.settings import Settings
from switchyard.services.engine.access.api_keys import Scope, create_key
from switchyard.services.engine.access.signing import is_signed
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.records.requests import JobFilter
from switchyard.services.engine.records.results import JobRecord
from switchyard.services.engine.records.states import State
from switchyard.services.engine.webhooks.deliveries import (
    DeliveryJob,
    Ignored,
    InvalidDelivery,
    github_job,
)
from switchyard.services.engine.webhooks.sources import InvalidWebhooks, WebhookSources
from switchyard.services.engine.wings import job_modules
from switchyard.services.pipeline.ledger import PipelineLedger
from tests.integration.api.background_api import in_background, open_api, with_own_client
from tests.integration.api.document_server import WORKERS
from tests.support.api_server import RunningApi, problem, serving, until_connected
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.hosts import GithubSite
from tests.support.system import System, open_system

SECRET = "It's a Secret to Everybody"
WEBHOOKS_FILE = """
[shop]
secret = "SHOP_WEBHOOK_SECRET"
routing_key = "hot.ingest_url"
payload = { url = "https://shop.example/{product.page}" }
when = { event = ["published"], "product.public" = [true] }
tags = { team = "shop" }
signature = "X-Shop-Signature"
prefix = ""
delivery = "X-Shop-Delivery"

[thief]
secret = "SHOP_WEBHOOK_SECRET"
routing_key = "hot.ingest_document"
payload = { path = "{path}" }
"""


def release(name: str = "psf/requests", action: str = "published", **fields: Any) -> dict[str, Any]:
    """Return GitHub's delivery of a release, with a few of its fields."""
    owner = name.partition("/")[0]
    return {
        "action": action,
        "release": {"id": 17372790, "tag_name": "v3.0.0", "draft": False, "body": None},
        "repository": {"id": 1, "full_name": name, "private": False, "default_branch": "main"},
        "sender": {"login": owner, "id": 2, "type": "User"},
    } | fields


STARRED_AT = "2026-11-22T10:00:01Z"


def repository(**fields: Any) -> dict[str, Any]:
    """Return GitHub's delivery of another event, with a few of its fields."""
    delivery = release(**fields)
    del delivery["release"]
    return {name: value for name, value in delivery.items() if name != "action" or name in fields}


def sign(body: bytes, secret: str = SECRET) -> str:
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


async def deliver(
    client: httpx.AsyncClient,
    content: Any,
    event: str = "release",
    *,
    signature: str | None = None,
    delivery: str = "72d3162e-cc78-11e3-81ab-4c9367dc0958",
) -> httpx.Response:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    headers = {
        "Content-Type": "application/json",
        "X-GitHub-Event": event,
        "X-GitHub-Delivery": delivery,
        "X-Hub-Signature-256": sign(body) if signature is None else signature,
    }
    raw_headers = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    return await client.post("/webhooks/github", content=body, headers=raw_headers)


@pytest.fixture(scope="module")
def webhook_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Yield the settings of an API that takes webhooks."""
    file = tmp_path_factory.mktemp("webhooks") / "webhooks.toml"
    file.write_text(WEBHOOKS_FILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOP_WEBHOOK_SECRET", SECRET)
        yield {"github_webhook_secret": SecretStr(SECRET), "webhooks": file}


@pytest.fixture
async def webhook_api(
    system: System, webhook_settings: dict[str, Any]
) -> AsyncIterator[RunningApi]:
    async with serving(system.settings, **webhook_settings) as running:
        await until_connected(running)
        yield running


@pytest.fixture(scope="module")
def _background_webhook_api(
    webhook_settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningApi]:
    with in_background(open_api(tmp_path_factory.mktemp("hooked"), **webhook_settings)) as running:
        yield running


@pytest.fixture
async def shared_webhook_api(_background_webhook_api: RunningApi) -> AsyncIterator[RunningApi]:
    """Yield an API that tests share in which no delivery makes a job."""
    async with with_own_client(_background_webhook_api) as running:
        yield running
        assert (await running.client.get("/jobs")).json()["jobs"] == []


async def jobs(system: System) -> list[JobRecord]:
    listed = (await system.ledger.job_reads.list_jobs(JobFilter(), limit=1000)).items
    return [await system.record(each.id) for each in listed]


async def test_a_release_becomes_a_hot_job_without_any_api_key(
    system: System, webhook_api: RunningApi
) -> None:
    await create_key(system.ledger, "somebody", [Scope.ADMIN])
    answer = await deliver(webhook_api.client, release())
    assert answer.status_code == 202, answer.text
    [job] = await jobs(system)
    assert (job.lane, job.job_type, job.payload) == (
        "hot",
        "ingest_github",
        {"repository": "psf/requests"},
    )
    assert answer.json()["job_id"] == job.id
    assert (job.source, job.state) == ("webhook:github", State.QUEUED)


async def test_a_repeated_delivery_is_a_duplicate_whatever_its_id(
    system: System, webhook_api: RunningApi
) -> None:
    first = await deliver(webhook_api.client, release())
    for delivery in ("72d3162e-cc78-11e3-81ab-4c9367dc0958", "another"):
        again = await deliver(webhook_api.client, release(), delivery=delivery)
        assert again.json() == {"job_id": first.json()["job_id"], "duplicate": True} | {
            "ignored": None
        }
    assert len(await jobs(system)) == 1
    assert (await deliver(webhook_api.client, release(action="edited"))).json()[
        "duplicate"
    ] is False


@pytest.mark.parametrize(
    "signature", ["", "sha256=", "sha256=" + "0" * 64, "sha1=abc", "ümläut", sign(b"other")]
)
async def test_a_delivery_with_a_wrong_signature_is_refused_before_it_is_parsed(
    shared_webhook_api: RunningApi, signature: str
) -> None:
    for content in (release(), b"no JSON at all"):
        answer = await deliver(shared_webhook_api.client, content, signature=signature)
        problem(answer, 401, "unauthorized")


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/webhooks/github", "", b"401"),
        ("/webhooks/github", "X-Hub-Signature-256: sha256=abc\r\n", b"401"),
        ("/webhooks/shop", "X-Hub-Signature-256: sha256=" + "0" * 64 + "\r\n", b"401"),
        ("/webhooks/nobody", "", b"404"),
    ],
)
async def test_a_delivery_without_a_possible_signature_is_refused_before_its_body(
    shared_webhook_api: RunningApi, path: str, headers: str, status: bytes
) -> None:
    url = httpx.URL(shared_webhook_api.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: 9000\r\n\r\n"
    writer.write(head.encode())
    answer = await asyncio.wait_for(reader.readline(), 5)
    assert answer.split()[1] == status
    writer.transport.abort()


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b"[" * 100_000, b'{"repository": {}}', b"\xff"]
)
async def test_an_invalid_signed_delivery_is_refused(
    shared_webhook_api: RunningApi, content: bytes
) -> None:
    problem(await deliver(shared_webhook_api.client, content), 422, "invalid")


async def test_a_delivery_that_is_too_long_is_refused(shared_webhook_api: RunningApi) -> None:
    problem(await deliver(shared_webhook_api.client, b" " * 3_000_000), 413, "too-large")


@pytest.mark.parametrize(
    ("event", "content", "makes_job"),
    [
        ("release", release(), True),
        ("repository", repository(action="edited", changes={}), True),
        ("repository", repository(action="deleted"), False),
        ("star", repository(action="created", starred_at=STARRED_AT), True),
        ("star", repository(action="deleted", starred_at=None), False),
        ("push", repository(ref="refs/heads/main", before="0"), True),
        ("push", repository(ref="refs/heads/topic", before="0"), False),
        ("push", repository(ref="refs/heads/main", deleted=True), False),
        ("ping", {"zen": "Keep it logically awesome."}, False),
        ("issues", release(action="opened"), False),
        ("", release(), False),
    ],
)
def test_which_events_make_jobs(event: str, content: dict[str, Any], makes_job: bool) -> None:
    outcome = github_job(event, json.dumps(content).encode())
    assert isinstance(outcome, DeliveryJob if makes_job else Ignored)
    if isinstance(outcome, DeliveryJob):
        Registry.load().get("ingest_github").validate_remote(outcome.payload)


def test_the_stars_of_ten_minutes_are_one_job() -> None:
    """By the signed time of the star: a captured delivery makes no other job later."""
    times = ("2026-11-22T10:00:01Z", "2026-11-22T10:09:59Z", "2026-11-22T10:10:00Z")
    one, two, three = [
        github_job("star", json.dumps(repository(action="created", starred_at=each)).encode())
        for each in times
    ]
    assert isinstance(one, DeliveryJob)
    assert one == two != three


EVENTS = {
    "watch": repository(action="started"),
    "public": repository(),
    "issues": repository(action="edited", issue={}, changes={}),
    "create": repository(ref="main", ref_type="branch", action="created"),
    "release": release(action="edited"),
    "star": repository(action="created", starred_at=STARRED_AT),
    "push": repository(ref="refs/heads/main", before="0"),
    "repository": repository(action="edited", changes={}),
}


@pytest.mark.parametrize("event", ["release", "push", "repository", "star"])
@pytest.mark.parametrize("sent_event", EVENTS)
def test_a_captured_delivery_is_invalid_as_another_event(sent_event: str, event: str) -> None:
    """The header that names the event is not signed."""
    body = json.dumps(EVENTS[sent_event]).encode()
    if event == sent_event:
        assert isinstance(github_job(event, body), DeliveryJob)
    else:
        with pytest.raises(InvalidDelivery, match=f"not of the event '{event}'"):
            github_job(event, body)


@pytest.mark.parametrize("action", [["edited"], {}, 1, None])
def test_a_delivery_whose_action_is_no_text_is_refused(action: object) -> None:
    body = json.dumps(repository(action=action)).encode()
    with pytest.raises(InvalidDelivery, match="not of the event"):
        github_job("repository", body)


@pytest.mark.parametrize("starred_at", ["soon", 5, []])
def test_a_star_without_a_valid_time_is_refused(starred_at: object) -> None:
    body = json.dumps(repository(action="created", starred_at=starred_at)).encode()
    with pytest.raises(InvalidDelivery, match="no time"):
        github_job("star", body)


async def test_ping_is_answered(shared_webhook_api: RunningApi) -> None:
    answer = await deliver(shared_webhook_api.client, {"zen": "x"}, "ping")
    assert (answer.status_code, answer.json()["ignored"]) == (200, "ping")


def test_the_signature_of_githubs_documentation_is_valid() -> None:
    """https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries"""
    signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert is_signed(b"Hello, World!", signature, SECRET)
    assert not is_signed(b"Hello, World?", signature, SECRET)


@pytest.mark.long  # at a pace that takes ten seconds
async def test_a_burst_of_a_thousand_deliveries_is_taken_in(
    system: System, webhook_api: RunningApi
) -> None:
    """They are more than the lane holds, and no worker runs: the others are recorded, and wait."""

    async def deliver_one(number: int) -> int:
        content = release(f"psf/repository-{number}")
        return (await deliver(webhook_api.client, content, delivery=str(number))).status_code

    began = time.monotonic()
    codes: list[int] = []
    for start in range(0, 1000, 50):
        codes += await asyncio.gather(*(deliver_one(number) for number in range(start, start + 50)))
        # At 100 per second: the rate limit refuses more than that.
        await asyncio.sleep(max(0.0, began + (start + 50) / 100 - time.monotonic()))
    assert set(codes) == {202}
    listed = (await system.ledger.job_reads.list_jobs(JobFilter(), limit=1000)).items
    assert len(listed) == 1000


async def test_a_delivery_for_a_full_lane_is_recorded_and_waits(
    system: System, webhook_api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    from switchyard.services.engine.monitoring.lane_pressure import QueueDepth
    from switchyard.services.engine.records.states import Pressure

    full = QueueDepth("hot.ingest", 1000, 0, 1000, Pressure.FULL)
    monkeypatch.setattr(webhook_api.state.broker.pressure, "recent", lambda queue: full)
    assert (await deliver(webhook_api.client, release())).status_code == 202
    [job] = await jobs(system)
    assert job.state is State.SCHEDULED


# --- others -------------------------------------------------------------------------------------


async def deliver_to_shop(
    client: httpx.AsyncClient, content: Any, source: str = "shop", delivery: str | None = "1"
) -> httpx.Response:
    body = json.dumps(content).encode()
    digest = sign(body)
    headers = {"X-Shop-Signature": digest.removeprefix("sha256="), "X-Hub-Signature-256": digest}
    if delivery is not None:
        headers["X-Shop-Delivery"] = delivery
    return await client.post(f"/webhooks/{source}", content=body, headers=headers)


PRODUCT = {"event": "published", "product": {"page": "kettle.html", "public": True}}


async def test_a_delivery_becomes_the_job_that_the_file_defines(
    system: System, webhook_api: RunningApi
) -> None:
    assert (await deliver_to_shop(webhook_api.client, PRODUCT)).status_code == 202
    again = await deliver_to_shop(webhook_api.client, PRODUCT)
    assert again.json()["duplicate"] is True
    assert (await deliver_to_shop(webhook_api.client, PRODUCT, delivery="2")).json()[
        "duplicate"
    ] is False
    [one, other] = await jobs(system)
    assert one.payload == other.payload == {"url": "https://shop.example/kettle.html"}
    assert (one.source, one.tags) == ("webhook:shop", {"team": "shop"})
    assert (await deliver_to_shop(webhook_api.client, {**PRODUCT, "event": "sold"})).json()[
        "ignored"
    ]
    assert (await deliver_to_shop(webhook_api.client, {"x": 1})).json()["ignored"]
    number = {"event": "published", "product": {"page": "kettle.html", "public": 1}}
    assert (await deliver_to_shop(webhook_api.client, number)).json()["ignored"]
    assert len(await jobs(system)) == 2


async def test_a_delivery_without_an_id_is_identified_by_its_bytes(webhook_api: RunningApi) -> None:
    """An empty id counts as none: otherwise all deliveries of such a sender would be duplicates."""
    other = PRODUCT | {"product": {"page": "other.html", "public": True}}
    assert (await deliver_to_shop(webhook_api.client, PRODUCT, delivery="")).status_code == 202
    assert (await deliver_to_shop(webhook_api.client, other, delivery="")).json()[
        "duplicate"
    ] is False
    assert (await deliver_to_shop(webhook_api.client, PRODUCT, delivery="")).json()[
        "duplicate"
    ] is True


async def test_a_delivery_that_does_not_fit_the_file_is_refused(
    shared_webhook_api: RunningApi,
) -> None:
    without_page = {"event": "published", "product": {"public": True}}
    problem(await deliver_to_shop(shared_webhook_api.client, without_page), 422, "invalid")
    problem(await deliver_to_shop(shared_webhook_api.client, PRODUCT, "nobody"), 404, "not-found")
    forged = await shared_webhook_api.client.post("/webhooks/shop", json=PRODUCT)
    problem(forged, 401, "unauthorized")


async def test_a_webhook_can_not_set_a_path_of_the_host(shared_webhook_api: RunningApi) -> None:
    """The payload from a delivery is validated as that of any other endpoint."""
    answer = await deliver_to_shop(shared_webhook_api.client, {"path": "/etc/passwd"}, "thief")
    problem(answer, 422, "invalid")
    assert "path can't be set from outside" in answer.text


async def test_without_a_secret_there_is_no_webhook(shared_api: RunningApi) -> None:
    problem(await deliver(shared_api.client, release()), 404, "not-found")
    problem(await deliver_to_shop(shared_api.client, PRODUCT), 404, "not-found")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[shop", "is not TOML"),
        ("[shop]", "routing_key"),
        (WEBHOOKS_FILE.replace("hot.ingest_url", "hot.nothing"), "no job type 'nothing'"),
        (WEBHOOKS_FILE.replace("hot.ingest_url", "hot2.ingest_url"), "write <lane>.<job_type>"),
        (WEBHOOKS_FILE.replace("[shop]", "[github]"), "another name"),
        (WEBHOOKS_FILE.replace("[shop]", '["a/b"]'), "another name"),
        (WEBHOOKS_FILE.replace("SHOP_WEBHOOK_SECRET", "UNSET_SECRET"), "set UNSET_SECRET"),
        (WEBHOOKS_FILE.replace("when =", "whenever ="), "whenever"),
    ],
)
def test_an_invalid_webhooks_file_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, error: str
) -> None:
    monkeypatch.setenv("SHOP_WEBHOOK_SECRET", SECRET)
    (tmp_path / "webhooks.toml").write_text(text)
    settings = Settings(webhooks=tmp_path / "webhooks.toml")
    with pytest.raises(InvalidWebhooks, match=error):
        WebhookSources.load(settings, Registry.load())
    with pytest.raises(InvalidWebhooks, match="there is no file"):
        WebhookSources.load(Settings(webhooks=tmp_path / "nothing.toml"), Registry.load())


# --- the whole chain ----------------------------------------------------------------------------


async def test_one_webhook_makes_a_document_that_is_searched_and_linked(
    broker310: TestBroker, sqlite_url: str, tmp_path: Path
) -> None:
    with GithubSite() as site:
        site.put("psf/requests")
        site.put("psf/requests-harbour")
        async with open_system(
            broker310, sqlite_url, modules=job_modules(), data_dir=tmp_path
        ) as system:
            await system.start_worker(*WORKERS, github_base_url=site.origin, github_interval=0.0)
            secret = SecretStr(SECRET)
            async with serving(system.settings, github_webhook_secret=secret) as api:
                await until_connected(api)
                for name in ("psf/requests-harbour", "psf/requests"):
                    assert (await deliver(api.client, release(name))).status_code == 202

                    async def is_there(source: str = f"github:{name}") -> bool:
                        listed = (
                            await PipelineLedger(system.ledger).documents.list_documents(
                                source=source
                            )
                        ).items
                        return bool(listed) and listed[0].state == "completed"

                    await eventually(is_there, timeout=60)
                listed = await PipelineLedger(system.ledger).documents.list_documents(
                    source="github:psf/requests"
                )
                document_id = listed.items[0].id
                query = {"query": "sessions that survive redirects"}
                hits = (await api.client.post("/search", json=query)).json()["hits"]
                assert document_id in {hit["document_id"] for hit in hits}
                result = (await api.client.get(f"/documents/{document_id}/result")).json()
                assert result["links"]


async def test_no_client_can_take_the_idempotency_key_of_a_delivery(
    system: System, webhook_api: RunningApi
) -> None:
    """The key is made of public data: a star's repository and time, or a release's body."""
    body = json.dumps(release()).encode()
    digest = hashlib.sha256(body).hexdigest()
    key = (await create_key(system.ledger, "publisher", [Scope.PUBLISH])).key
    job = {"routing_key": "hot.ingest_github", "payload": {"repository": "psf/requests"}}
    other_ids = set()
    for guessed in (f"webhook/github/{digest}", f"webhook:github/webhook/github/{digest}"):
        for payload in (job["payload"], {"repository": "somebody/else"}):
            headers = {"X-API-Key": key, "Idempotency-Key": f"{guessed}"}
            answer = await webhook_api.client.post(
                "/jobs", json=job | {"payload": payload, "delay": 60}, headers=headers
            )
            other_ids.add(answer.json()["job_id"])
    with_blank = {"X-API-Key": key, "Idempotency-Key": f"webhook:github webhook/github/{digest}"}
    answer = await webhook_api.client.post("/jobs", json=job, headers=with_blank)
    problem(answer, 422, "invalid")
    delivered = await deliver(webhook_api.client, body)
    assert (delivered.status_code, delivered.json()["duplicate"]) == (202, False), delivered.text
    assert delivered.json()["job_id"] not in other_ids
    assert (await deliver(webhook_api.client, body)).json()["duplicate"] is True


async def test_a_delivery_id_with_another_content_is_a_conflict(webhook_api: RunningApi) -> None:
    other = PRODUCT | {"product": {"page": "other.html", "public": True}}
    assert (await deliver_to_shop(webhook_api.client, PRODUCT)).status_code == 202
    again = await deliver_to_shop(webhook_api.client, other)
    assert problem(again, 409, "idempotency-conflict")["job_id"]
