"""What other systems tell us: taken in when it is signed, once, as the job that it asks for."""

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
FILE = """
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


def release(name: str = "psf/requests", action: str = "published", **more: Any) -> dict[str, Any]:
    """As GitHub tells of a release; much is left out."""
    owner = name.partition("/")[0]
    return {
        "action": action,
        "release": {"id": 17372790, "tag_name": "v3.0.0", "draft": False, "body": None},
        "repository": {"id": 1, "full_name": name, "private": False, "default_branch": "main"},
        "sender": {"login": owner, "id": 2, "type": "User"},
    } | more


STARRED = "2026-11-22T10:00:01Z"


def repository(**more: Any) -> dict[str, Any]:
    """As GitHub tells of other events; much is left out."""
    told = release(**more)
    del told["release"]
    return {name: value for name, value in told.items() if name != "action" or name in more}


def signed(body: bytes, secret: str = SECRET) -> str:
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


async def deliver(
    client: httpx.AsyncClient,
    told: Any,
    event: str = "release",
    *,
    signature: str | None = None,
    delivery: str = "72d3162e-cc78-11e3-81ab-4c9367dc0958",
) -> httpx.Response:
    body = told if isinstance(told, bytes) else json.dumps(told).encode()
    headers = {
        "Content-Type": "application/json",
        "X-GitHub-Event": event,
        "X-GitHub-Delivery": delivery,
        "X-Hub-Signature-256": signed(body) if signature is None else signature,
    }
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    return await client.post("/webhooks/github", content=body, headers=raw)


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The settings of an API that takes webhooks."""
    file = tmp_path_factory.mktemp("webhooks") / "webhooks.toml"
    file.write_text(FILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOP_WEBHOOK_SECRET", SECRET)
        yield {"github_webhook_secret": SecretStr(SECRET), "webhooks": file}


@pytest.fixture
async def hooked(system: System, secrets: dict[str, Any]) -> AsyncIterator[RunningApi]:
    async with serving(system.settings, **secrets) as running:
        await until_connected(running)
        yield running


@pytest.fixture(scope="module")
def _standing_hooked(
    secrets: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningApi]:
    with in_background(open_api(tmp_path_factory.mktemp("hooked"), **secrets)) as running:
        yield running


@pytest.fixture
async def shared(_standing_hooked: RunningApi) -> AsyncIterator[RunningApi]:
    """Shared by the tests of which nothing comes: there is never a job."""
    async with with_own_client(_standing_hooked) as running:
        yield running
        assert (await running.client.get("/jobs")).json()["jobs"] == []


async def jobs(system: System) -> list[JobRecord]:
    listed = (await system.ledger.job_reads.list_jobs(JobFilter(), limit=1000)).items
    return [await system.record(each.id) for each in listed]


async def test_a_release_becomes_a_hot_job_without_any_api_key(
    system: System, hooked: RunningApi
) -> None:
    await create_key(system.ledger, "somebody", [Scope.ADMIN])
    answer = await deliver(hooked.client, release())
    assert answer.status_code == 202, answer.text
    [job] = await jobs(system)
    assert (job.lane, job.job_type, job.payload) == (
        "hot",
        "ingest_github",
        {"repository": "psf/requests"},
    )
    assert answer.json()["job_id"] == job.id
    assert (job.source, job.state) == ("webhook:github", State.QUEUED)


async def test_a_delivery_that_comes_again_is_known_whatever_its_id(
    system: System, hooked: RunningApi
) -> None:
    first = await deliver(hooked.client, release())
    for delivery in ("72d3162e-cc78-11e3-81ab-4c9367dc0958", "another"):
        again = await deliver(hooked.client, release(), delivery=delivery)
        assert again.json() == {"job_id": first.json()["job_id"], "duplicate": True} | {
            "ignored": None
        }
    assert len(await jobs(system)) == 1
    assert (await deliver(hooked.client, release(action="edited"))).json()["duplicate"] is False


@pytest.mark.parametrize(
    "signature", ["", "sha256=", "sha256=" + "0" * 64, "sha1=abc", "ümläut", signed(b"other")]
)
async def test_a_delivery_of_somebody_else_is_refused_before_it_is_read(
    shared: RunningApi, signature: str
) -> None:
    for told in (release(), b"no JSON at all"):
        answer = await deliver(shared.client, told, signature=signature)
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
async def test_a_delivery_that_can_not_be_signed_is_refused_without_its_body(
    shared: RunningApi, path: str, headers: str, status: bytes
) -> None:
    url = httpx.URL(shared.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: 9000\r\n\r\n"
    writer.write(head.encode())
    answer = await asyncio.wait_for(reader.readline(), 5)
    assert answer.split()[1] == status
    writer.transport.abort()


@pytest.mark.parametrize("told", [b"", b"[]", b"{", b"[" * 100_000, b'{"repository": {}}', b"\xff"])
async def test_a_signed_delivery_without_sense_is_refused(shared: RunningApi, told: bytes) -> None:
    problem(await deliver(shared.client, told), 422, "invalid")


async def test_a_delivery_that_is_too_long_is_refused(shared: RunningApi) -> None:
    problem(await deliver(shared.client, b" " * 3_000_000), 413, "too-large")


@pytest.mark.parametrize(
    ("event", "told", "handled"),
    [
        ("release", release(), True),
        ("repository", repository(action="edited", changes={}), True),
        ("repository", repository(action="deleted"), False),
        ("star", repository(action="created", starred_at=STARRED), True),
        ("star", repository(action="deleted", starred_at=None), False),
        ("push", repository(ref="refs/heads/main", before="0"), True),
        ("push", repository(ref="refs/heads/topic", before="0"), False),
        ("push", repository(ref="refs/heads/main", deleted=True), False),
        ("ping", {"zen": "Keep it logically awesome."}, False),
        ("issues", release(action="opened"), False),
        ("", release(), False),
    ],
)
def test_these_events_make_jobs_and_all_others_none(
    event: str, told: dict[str, Any], handled: bool
) -> None:
    found = github_job(event, json.dumps(told).encode())
    assert isinstance(found, DeliveryJob if handled else Ignored)
    if isinstance(found, DeliveryJob):
        Registry.load().get("ingest_github").validate_remote(found.payload)


def test_the_stars_of_some_minutes_are_one_job() -> None:
    """By the time that GitHub has signed: one that was captured makes no other job later."""
    times = ("2026-11-22T10:00:01Z", "2026-11-22T10:09:59Z", "2026-11-22T10:10:00Z")
    one, two, three = [
        github_job("star", json.dumps(repository(action="created", starred_at=each)).encode())
        for each in times
    ]
    assert isinstance(one, DeliveryJob)
    assert one == two != three


OTHERS = {
    "watch": repository(action="started"),
    "public": repository(),
    "issues": repository(action="edited", issue={}, changes={}),
    "create": repository(ref="main", ref_type="branch", action="created"),
    "release": release(action="edited"),
    "star": repository(action="created", starred_at=STARRED),
    "push": repository(ref="refs/heads/main", before="0"),
    "repository": repository(action="edited", changes={}),
}


@pytest.mark.parametrize("event", ["release", "push", "repository", "star"])
@pytest.mark.parametrize("sent", OTHERS)
def test_a_captured_delivery_is_none_of_another_event(sent: str, event: str) -> None:
    """The header that names the event is not signed."""
    body = json.dumps(OTHERS[sent]).encode()
    if event == sent:
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
def test_a_star_at_no_time_is_refused(starred_at: object) -> None:
    body = json.dumps(repository(action="created", starred_at=starred_at)).encode()
    with pytest.raises(InvalidDelivery, match="no time"):
        github_job("star", body)


async def test_ping_is_answered(shared: RunningApi) -> None:
    answer = await deliver(shared.client, {"zen": "x"}, "ping")
    assert (answer.status_code, answer.json()["ignored"]) == (200, "ping")


def test_githubs_own_example_of_a_signature() -> None:
    """https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries"""
    told = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert is_signed(b"Hello, World!", told, SECRET)
    assert not is_signed(b"Hello, World?", told, SECRET)


@pytest.mark.long  # at a pace that takes ten seconds
async def test_a_burst_of_a_thousand_deliveries_is_taken_in(
    system: System, hooked: RunningApi
) -> None:
    """More than the lane holds, with no worker: what has no room is recorded, and waits."""

    async def one(number: int) -> int:
        told = release(f"psf/repository-{number}")
        return (await deliver(hooked.client, told, delivery=str(number))).status_code

    began = time.monotonic()
    codes: list[int] = []
    for start in range(0, 1000, 50):
        codes += await asyncio.gather(*(one(number) for number in range(start, start + 50)))
        # At the pace of 1,000 in 10 s: faster is the rate limit's concern.
        await asyncio.sleep(max(0.0, began + (start + 50) / 100 - time.monotonic()))
    assert set(codes) == {202}
    listed = (await system.ledger.job_reads.list_jobs(JobFilter(), limit=1000)).items
    assert len(listed) == 1000


async def test_what_finds_its_lane_full_waits_for_its_turn(
    system: System, hooked: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    from switchyard.services.engine.monitoring.lane_pressure import QueueDepth
    from switchyard.services.engine.records.states import Pressure

    full = QueueDepth("hot.ingest", 1000, 0, 1000, Pressure.FULL)
    monkeypatch.setattr(hooked.state.broker.pressure, "recent", lambda queue: full)
    assert (await deliver(hooked.client, release())).status_code == 202
    [job] = await jobs(system)
    assert job.state is State.SCHEDULED


# --- others -------------------------------------------------------------------------------------


async def tell(
    client: httpx.AsyncClient, told: Any, source: str = "shop", delivery: str | None = "1"
) -> httpx.Response:
    body = json.dumps(told).encode()
    digest = signed(body)
    headers = {"X-Shop-Signature": digest.removeprefix("sha256="), "X-Hub-Signature-256": digest}
    if delivery is not None:
        headers["X-Shop-Delivery"] = delivery
    return await client.post(f"/webhooks/{source}", content=body, headers=headers)


PRODUCT = {"event": "published", "product": {"page": "kettle.html", "public": True}}


async def test_another_systems_delivery_becomes_the_job_that_the_file_says(
    system: System, hooked: RunningApi
) -> None:
    assert (await tell(hooked.client, PRODUCT)).status_code == 202
    again = await tell(hooked.client, PRODUCT)
    assert again.json()["duplicate"] is True
    assert (await tell(hooked.client, PRODUCT, delivery="2")).json()["duplicate"] is False
    [one, other] = await jobs(system)
    assert one.payload == other.payload == {"url": "https://shop.example/kettle.html"}
    assert (one.source, one.tags) == ("webhook:shop", {"team": "shop"})
    assert (await tell(hooked.client, {**PRODUCT, "event": "sold"})).json()["ignored"]
    assert (await tell(hooked.client, {"x": 1})).json()["ignored"]
    number = {"event": "published", "product": {"page": "kettle.html", "public": 1}}
    assert (await tell(hooked.client, number)).json()["ignored"]
    assert len(await jobs(system)) == 2


async def test_a_delivery_without_an_id_is_known_by_its_bytes(hooked: RunningApi) -> None:
    """An empty header is none: else all deliveries of such a sender would be one."""
    other = PRODUCT | {"product": {"page": "other.html", "public": True}}
    assert (await tell(hooked.client, PRODUCT, delivery="")).status_code == 202
    assert (await tell(hooked.client, other, delivery="")).json()["duplicate"] is False
    assert (await tell(hooked.client, PRODUCT, delivery="")).json()["duplicate"] is True


async def test_a_delivery_that_does_not_fit_is_refused(shared: RunningApi) -> None:
    lost = {"event": "published", "product": {"public": True}}
    problem(await tell(shared.client, lost), 422, "invalid")
    problem(await tell(shared.client, PRODUCT, "nobody"), 404, "not-found")
    forged = await shared.client.post("/webhooks/shop", json=PRODUCT)
    problem(forged, 401, "unauthorized")


async def test_a_webhook_names_no_file_of_the_host(shared: RunningApi) -> None:
    """What a delivery says passes the same rule as every other door."""
    answer = await tell(shared.client, {"path": "/etc/passwd"}, "thief")
    problem(answer, 422, "invalid")
    assert "path can't be set from outside" in answer.text


async def test_without_a_secret_there_is_no_webhook(shared_api: RunningApi) -> None:
    problem(await deliver(shared_api.client, release()), 404, "not-found")
    problem(await tell(shared_api.client, PRODUCT), 404, "not-found")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[shop", "is not TOML"),
        ("[shop]", "routing_key"),
        (FILE.replace("hot.ingest_url", "hot.nothing"), "no job type 'nothing'"),
        (FILE.replace("hot.ingest_url", "hot2.ingest_url"), "write <lane>.<job_type>"),
        (FILE.replace("[shop]", "[github]"), "another name"),
        (FILE.replace("[shop]", '["a/b"]'), "another name"),
        (FILE.replace("SHOP_WEBHOOK_SECRET", "UNSET_SECRET"), "set UNSET_SECRET"),
        (FILE.replace("when =", "whenever ="), "whenever"),
    ],
)
def test_a_file_that_can_not_work_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.setenv("SHOP_WEBHOOK_SECRET", SECRET)
    (tmp_path / "webhooks.toml").write_text(text)
    settings = Settings(webhooks=tmp_path / "webhooks.toml")
    with pytest.raises(InvalidWebhooks, match=said):
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
                found = (await api.client.post("/search", json=query)).json()["hits"]
                assert document_id in {hit["document_id"] for hit in found}
                result = (await api.client.get(f"/documents/{document_id}/result")).json()
                assert result["links"]


async def test_nobody_takes_a_delivery_s_key_before_it_comes(
    system: System, hooked: RunningApi
) -> None:
    """The key is made of what is public: a star's of repository and time, a release's of a body
    that can be read on GitHub."""
    body = json.dumps(release()).encode()
    digest = hashlib.sha256(body).hexdigest()
    key = (await create_key(system.ledger, "publisher", [Scope.PUBLISH])).key
    wanted = {"routing_key": "hot.ingest_github", "payload": {"repository": "psf/requests"}}
    taken = set()
    for guessed in (f"webhook/github/{digest}", f"webhook:github/webhook/github/{digest}"):
        for payload in (wanted["payload"], {"repository": "somebody/else"}):
            headers = {"X-API-Key": key, "Idempotency-Key": f"{guessed}"}
            answer = await hooked.client.post(
                "/jobs", json=wanted | {"payload": payload, "delay": 60}, headers=headers
            )
            taken.add(answer.json()["job_id"])
    with_blank = {"X-API-Key": key, "Idempotency-Key": f"webhook:github webhook/github/{digest}"}
    answer = await hooked.client.post("/jobs", json=wanted, headers=with_blank)
    problem(answer, 422, "invalid")
    delivered = await deliver(hooked.client, body)
    assert (delivered.status_code, delivered.json()["duplicate"]) == (202, False), delivered.text
    assert delivered.json()["job_id"] not in taken
    assert (await deliver(hooked.client, body)).json()["duplicate"] is True


async def test_a_delivery_id_with_another_content_is_a_conflict(hooked: RunningApi) -> None:
    other = PRODUCT | {"product": {"page": "other.html", "public": True}}
    assert (await tell(hooked.client, PRODUCT)).status_code == 202
    again = await tell(hooked.client, other)
    assert problem(again, 409, "idempotency-conflict")["job_id"]
