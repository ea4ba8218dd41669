"""Keys and scopes, rate limits, sizes of bodies, and what answers and logs must not contain."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import product
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from switchyard.api import app
from switchyard.api.app import create_app
from switchyard.api.middleware import access
from switchyard.api.middleware.access import KeysMissing
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_keys import content_hash
from switchyard.services.engine.access.api_keys import CACHE_TTL, Scope, create_key, hash_of
from switchyard.services.engine.records.errors import LedgerUnavailable
from switchyard.services.pipeline.ledger import PipelineLedger
from switchyard.services.pipeline.workers.stages import document_id_of
from tests.support.api_server import RunningApi, problem, serving
from tests.support.eventually import eventually
from tests.support.system import System

NOOP = {"routing_key": "hot.noop"}


@pytest.fixture
async def keys(system: System) -> dict[str, str]:
    """Return a key of each scope, by the scope."""
    return {scope.value: (await create_key(system.ledger, scope, [scope])).key for scope in Scope}


@pytest.fixture
async def keyed_api(system: System, keys: dict[str, str]) -> AsyncIterator[RunningApi]:
    """Yield the API of a system that has keys."""
    async with serving(system.settings) as running:
        yield running


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def test_a_key_is_required_once_one_exists(keyed_api: RunningApi) -> None:
    for headers in ({}, bearer("wrong"), {"X-API-Key": "swy_wrong"}):
        answer = await keyed_api.client.get("/jobs", headers=headers)
        problem(answer, 401, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "headers",
    [
        bearer("wrong"),
        {"X-API-Key": "swy_wrong"},
        {"X-API-Key": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "swy_wrong"},
        {"Authorization": "Basic c3d5X3dyb25nOg=="},
    ],
)
async def test_a_wrong_key_is_refused_even_if_none_is_required(
    shared_api: RunningApi, headers: dict[str, str]
) -> None:
    assert (await shared_api.client.get("/jobs")).status_code == 200
    problem(await shared_api.client.get("/jobs", headers=headers), 401, "unauthorized")


async def test_a_request_with_more_than_one_key_is_refused(
    keyed_api: RunningApi, keys: dict[str, str]
) -> None:
    admin_key, read_key = f"Bearer {keys['admin']}", f"Bearer {keys['read']}"
    for headers in (
        [("Authorization", admin_key), ("Authorization", "Bearer wrong")],
        [("Authorization", read_key), ("Authorization", admin_key)],
        [("Authorization", admin_key), ("Authorization", admin_key)],
        [("Authorization", admin_key), ("X-API-Key", keys["admin"])],
        [("X-API-Key", keys["admin"]), ("X-API-Key", "swy_wrong")],
    ):
        body = problem(await keyed_api.client.get("/jobs", headers=headers), 401, "unauthorized")
        assert "one API key" in body["detail"]


async def test_a_key_may_do_what_its_scopes_allow(
    keyed_api: RunningApi, keys: dict[str, str]
) -> None:
    for scope, allowed in (
        ("read", {"read"}),
        ("publish", {"publish"}),
        ("admin", {"read", "publish", "admin"}),
    ):
        headers = bearer(keys[scope])
        statuses = {
            "read": (await keyed_api.client.get("/jobs", headers=headers)).status_code,
            "publish": (
                await keyed_api.client.post("/jobs", json=NOOP, headers=headers)
            ).status_code,
            "admin": (await keyed_api.client.get("/admin/workers", headers=headers)).status_code,
        }
        assert {name for name, status in statuses.items() if status < 300} == allowed, scope
        assert {status for status in statuses.values() if status >= 300} <= {403}


async def test_the_error_names_the_missing_scope(
    keyed_api: RunningApi, keys: dict[str, str]
) -> None:
    answer = await keyed_api.client.delete("/jobs/x", headers={"X-API-Key": keys["read"]})
    assert "publish" in problem(answer, 403, "forbidden")["detail"]


async def test_a_publish_key_sees_no_document_in_a_backfill(
    system: System, keyed_api: RunningApi, keys: dict[str, str]
) -> None:
    await PipelineLedger(system.ledger).documents.upsert_document(
        "0" * 64, document_id="first", title="A secret"
    )
    template = {"text": "{document_id}"}
    plan = {"source": "documents", "options": {}, "job_type": "noop", "payload": template}
    read_publish_key = (await create_key(system.ledger, "both", [Scope.READ, Scope.PUBLISH])).key
    for path in ("/backfills/preview", "/backfills"):
        answer = await keyed_api.client.post(path, json=plan, headers=bearer(keys["publish"]))
        assert "read" in problem(answer, 403, "forbidden")["detail"]
        assert "first" not in answer.text
        allowed = await keyed_api.client.post(path, json=plan, headers=bearer(read_publish_key))
        assert allowed.status_code in (200, 202), allowed.text


async def test_a_publish_key_gets_no_metadata_of_a_known_document(
    system: System, keyed_api: RunningApi, keys: dict[str, str]
) -> None:
    digest = content_hash(b"The same content.")
    await PipelineLedger(system.ledger).documents.upsert_document(
        digest,
        document_id=document_id_of(digest),
        title="A secret",
        filename="secret.pdf",
        state="completed",
    )
    read_publish_key = (await create_key(system.ledger, "both", [Scope.READ, Scope.PUBLISH])).key
    for key, title in ((keys["publish"], None), (read_publish_key, "A secret")):
        answer = await keyed_api.client.post(
            "/documents",
            files={"file": ("a.md", b"The same content.")},
            headers=bearer(key),
        )
        assert answer.status_code == 200, answer.text
        assert (answer.json()["duplicate"], answer.json()["title"]) == (True, title)
        assert ("secret" in answer.text) is (title is not None)
        filled_fields = {
            name for name, value in answer.json().items() if value not in (None, [], {})
        }
        if title is None:
            assert filled_fields == {"document_id", "state", "duplicate"}


async def test_a_revoked_key_works_no_longer(
    system: System, keyed_api: RunningApi, keys: dict[str, str]
) -> None:
    headers = bearer(keys["read"])
    assert (await keyed_api.client.get("/jobs", headers=headers)).is_success
    keys_by_name = {key.name: key for key in await system.ledger.api_keys.list_api_keys()}
    assert keys_by_name["read"].last_used_at == pytest.approx(time.time(), abs=30)
    await system.ledger.api_keys.revoke_api_key(keys_by_name["read"].id, time.time())

    async def is_refused() -> bool:
        return (await keyed_api.client.get("/jobs", headers=headers)).status_code == 401

    await eventually(is_refused, CACHE_TTL + 2)


async def revoke(system: System, name: str) -> None:
    [api_key] = [key for key in await system.ledger.api_keys.list_api_keys() if key.name == name]
    await system.ledger.api_keys.revoke_api_key(api_key.id, time.time())


@pytest.mark.parametrize("path", ["/events", "/jobs/JOB/events"])
async def test_a_stream_ends_within_two_seconds_of_the_revocation_of_its_key(
    system: System, keyed_api: RunningApi, keys: dict[str, str], path: str
) -> None:
    other_key = (await create_key(system.ledger, "other", [Scope.READ])).key
    path = path.replace("JOB", await system.publish("hot.noop"))
    async with AsyncExitStack() as opened:
        ends = []
        for key in (keys["read"], other_key):
            streaming = keyed_api.client.stream("GET", path, headers=bearer(key))
            answer = await opened.enter_async_context(streaming)
            assert answer.status_code == 200
            ends.append(asyncio.create_task(answer.aread()))
        await eventually(lambda: keyed_api.state.streams.used == 2, what="the streams")
        await revoke(system, "read")
        began = time.monotonic()
        await asyncio.wait_for(ends[0], 15)
        took = time.monotonic() - began
        assert not ends[1].done()
        assert keyed_api.state.streams.used == 1
        ends[1].cancel()
        await asyncio.gather(ends[1], return_exceptions=True)
    assert took < 2 + 1  # the machine may be busy


async def test_the_first_key_ends_all_streams_without_a_key(
    system: System, api: RunningApi
) -> None:
    async with api.client.stream("GET", "/events") as answer:
        assert answer.status_code == 200
        await create_key(system.ledger, "first", [Scope.READ])
        await asyncio.wait_for(answer.aread(), 15)


async def test_a_stream_outlives_a_short_outage_of_the_ledger(
    system: System,
    keyed_api: RunningApi,
    keys: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    was_asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def fail_to_find(*_: object) -> None:
        loop.call_soon_threadsafe(was_asked.set)
        raise LedgerUnavailable("it does not answer")

    async with keyed_api.client.stream("GET", "/events", headers=bearer(keys["read"])) as answer:
        end = asyncio.create_task(answer.aread())
        monkeypatch.setattr(keyed_api.state.ledger.api_keys, "find_api_key", fail_to_find)
        for _ in range(2):
            was_asked.clear()
            await asyncio.wait_for(was_asked.wait(), 15)
        assert not end.done()
        monkeypatch.setattr(access, "MAX_UNCONFIRMED_SECONDS", 0.0)
        await asyncio.wait_for(end, 15)


async def test_a_waiting_request_is_refused_once_its_key_is_revoked(
    system: System, keyed_api: RunningApi, keys: dict[str, str]
) -> None:
    job_id = await system.publish("hot.noop")
    path = f"/llm/requests/{job_id}?wait=3"
    waiting = asyncio.create_task(keyed_api.client.get(path, headers=bearer(keys["read"])))
    await eventually(lambda: keyed_api.state.streams.used == 1, what="the request waits")
    await revoke(system, "read")
    problem(await waiting, 401, "unauthorized")
    assert keyed_api.state.streams.used == 0


async def test_one_key_can_not_take_all_streams(system: System, keys: dict[str, str]) -> None:
    async with serving(system.settings, api_max_streams=8) as api, AsyncExitStack() as opened:

        async def open_stream(key: str) -> int:
            streaming = api.client.stream("GET", "/events", headers=bearer(keys[key]))
            answer = await opened.enter_async_context(streaming)
            return answer.status_code

        statuses = [await open_stream("read") for _ in range(8)]
        assert statuses == [200] * 4 + [503] * 4
        job_id = await system.publish("hot.noop")
        waiting_request = await api.client.get(
            f"/llm/requests/{job_id}?wait=1", headers=bearer(keys["read"])
        )
        problem(waiting_request, 503, "too-many-streams")
        assert await open_stream("admin") == 200


@pytest.mark.parametrize("path", ["/health", "/health/ready", "/health/live"])
async def test_health_has_a_rate_limit_of_its_own(
    system: System, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(app, "PROBE_RATE", 0.01)
    monkeypatch.setattr(app, "PROBE_BURST", 2)
    async with serving(system.settings) as api:
        statuses = [(await api.client.get(path)).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]
        assert (await api.client.get("/jobs")).status_code == 200


async def test_paths_that_resemble_health_have_the_common_rate_limit(system: System) -> None:
    paths = ("/healthy", "/health/x", "/health/", "//health", "/health%2F..%2Fjobs", "/health%0A")
    limits = {"api_rate_limit": 0.01, "api_rate_burst": len(paths)}
    async with serving(system.settings, **limits) as api:
        url = httpx.URL(api.url)
        statuses = []
        for path in (*paths, *paths):
            reader, writer = await asyncio.open_connection(url.host, url.port)
            writer.write(
                f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
            )
            statuses.append((await reader.read()).split()[1])
            writer.close()
        assert statuses[len(paths) :] == [b"429"] * len(paths)
        assert b"429" not in statuses[: len(paths)]
        assert (await api.client.get("/health/live")).is_success


async def test_health_writes_no_file_for_each_request(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = 0
    put = Storage.put_async

    async def count_and_put(storage: Storage, *arguments: Any) -> None:
        nonlocal written
        written += 1
        await put(storage, *arguments)

    monkeypatch.setattr(Storage, "put_async", count_and_put)
    async with serving(system.settings) as api:
        began = time.monotonic()
        answers = await asyncio.gather(*(api.client.get("/health") for _ in range(100)))
        assert {each.status_code for each in answers} == {200}
        assert 1 <= written <= 3 + 1 + (time.monotonic() - began)


async def test_only_the_hash_of_a_key_is_stored(system: System, keys: dict[str, str]) -> None:
    assert len({*keys.values()}) == len(keys)
    records = await system.ledger.api_keys.list_api_keys()
    assert {record.key_hash for record in records} == set(map(hash_of, keys.values()))
    assert not any(key in repr(record) for key in keys.values() for record in records)


async def test_keys_of_the_settings_have_their_scopes(system: System) -> None:
    admin_key, read_key = "o" * 32, "t" * 32
    async with serving(system.settings, api_keys=SecretStr(f"{admin_key},{read_key}:read")) as api:
        assert (await api.client.get("/admin/workers", headers=bearer(admin_key))).is_success
        assert (await api.client.get("/jobs", headers=bearer(read_key))).is_success
        problem(
            await api.client.post("/jobs", json=NOOP, headers=bearer(read_key)), 403, "forbidden"
        )
        problem(await api.client.get("/jobs"), 401, "unauthorized")


async def test_a_key_is_required_as_soon_as_the_first_is_created(
    system: System, api: RunningApi
) -> None:
    assert (await api.client.get("/jobs")).is_success
    await create_key(system.ledger, "first", [Scope.READ])

    async def is_locked() -> bool:
        return (await api.client.get("/jobs")).status_code == 401

    await eventually(is_locked, CACHE_TTL + 2)


async def test_without_keys_the_api_does_not_start_beyond_loopback(system: System) -> None:
    async def start(**changes: Any) -> None:
        app = create_app(system.settings.model_copy(update={"api_host": "0.0.0.0", **changes}))
        async with app.router.lifespan_context(app):
            pass

    with pytest.raises(KeysMissing, match="jobctl keys create"):
        await start()
    await start(api_keys=SecretStr("k" * 32))
    await create_key(system.ledger, "one", [Scope.READ])
    await start()


async def test_without_keys_a_foreign_host_header_is_refused(
    shared_api: RunningApi,
) -> None:
    answer = await shared_api.client.get("/jobs", headers={"Host": "evil.example"})
    problem(answer, 403, "forbidden")


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://[", "http://127.evil"])
async def test_without_keys_a_form_of_a_foreign_web_page_is_refused(
    shared_api: RunningApi, origin: str
) -> None:
    files = {"file": ("a.txt", b"Some words.", "text/plain")}
    answer = await shared_api.client.post("/documents", files=files, headers={"Origin": origin})
    problem(answer, 403, "forbidden")


async def test_a_web_page_of_this_machine_is_served_without_keys(shared_api: RunningApi) -> None:
    answer = await shared_api.client.get("/jobs", headers={"Origin": "http://localhost:3000"})
    assert answer.status_code == 200


async def test_with_a_key_any_web_page_is_served(api: RunningApi, keys: dict[str, str]) -> None:
    headers = {**bearer(keys["read"]), "Origin": "https://ours.example"}
    assert (await api.client.get("/jobs", headers=headers)).status_code == 200


async def test_too_many_requests_get_429_with_retry_after(
    system: System, keys: dict[str, str]
) -> None:
    async with serving(system.settings, api_rate_limit=0.5, api_rate_burst=3) as api:
        answers = [await api.client.get("/jobs", headers=bearer(keys["read"])) for _ in range(4)]
        assert [each.status_code for each in answers] == [200, 200, 200, 429]
        assert [each.headers["ratelimit-remaining"] for each in answers] == ["2", "1", "0", "0"]
        assert answers[0].headers["ratelimit-limit"] == "3"
        assert 1 <= int(answers[0].headers["ratelimit-reset"]) <= 3
        problem(answers[3], 429, "rate-limited")
        assert 1 <= int(answers[3].headers["retry-after"]) <= 3
        assert (await api.client.get("/health/live")).is_success


async def test_a_key_has_one_limit_from_all_its_addresses(
    system: System, keys: dict[str, str]
) -> None:
    async with serving(system.settings, api_rate_limit=0.1, api_rate_burst=3) as api:
        statuses = []
        for last in range(4):
            # Each from another loopback address, so that no address reaches its own limit.
            transport = httpx.AsyncHTTPTransport(local_address=f"127.0.0.{last + 10}")
            async with httpx.AsyncClient(transport=transport, base_url=api.url) as client:
                answer = await client.get("/jobs", headers=bearer(keys["read"]))
                statuses.append(answer.status_code)
        assert statuses == [200, 200, 200, 429]


async def test_a_missing_or_wrong_key_is_refused_before_the_body_is_read(
    keyed_api: RunningApi, keys: dict[str, str]
) -> None:
    """Includes every new route: the operations are taken from the OpenAPI document."""
    document = (await keyed_api.client.get("/openapi.json")).json()
    operations = [
        (method.upper(), path.replace("{", "").replace("}", ""))
        for path, item in document["paths"].items()
        for method in item
        if method in ("post", "put", "patch", "delete")
    ]
    assert len(operations) > 20
    url = httpx.URL(keyed_api.url)
    for method, path in operations:
        for kind, length in (
            ("application/json", "Content-Length: 100000"),
            ("application/json", "Transfer-Encoding: chunked"),
            ("multipart/form-data; boundary=b", "Content-Length: 9000000000"),
        ):
            for key, status in (("", b"401"), ("wrong", b"401"), (keys["read"], b"403")):
                if status == b"403" and path == "/search":
                    continue
                key_header = f"X-API-Key: {key}\r\n" if key else ""
                head = (
                    f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{key_header}"
                    f"Content-Type: {kind}\r\n{length}\r\n\r\n"
                )
                reader, writer = await asyncio.open_connection(url.host, url.port)
                writer.write(head.encode())
                answer = await asyncio.wait_for(reader.readline(), 5)  # a body gets 10 s and more
                assert answer.split()[1] == status, (method, path, kind, length, key)
                writer.transport.abort()


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_that_is_too_large_is_refused(
    shared_api: RunningApi, is_chunked: bool
) -> None:
    body = b'{"routing_key": "hot.noop", "payload": {"text": "' + b"x" * (3 * 1024 * 1024) + b'"}}'

    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 64 * 1024):
            yield body[start : start + 64 * 1024]

    before = (await shared_api.client.get("/jobs")).json()
    answer = await shared_api.client.post(
        "/jobs",
        content=parts() if is_chunked else body,
        headers={"content-type": "application/json"},
    )
    problem(answer, 413, "too-large")
    assert (await shared_api.client.get("/jobs")).json() == before


@pytest.mark.parametrize("path", ["/documents/generate", "/documents/x", "/extract", "/process/x"])
async def test_only_the_paths_that_take_files_have_the_limit_for_files(
    shared_api: RunningApi, path: str
) -> None:
    body = b'{"kinds": [' + b'"a",' * 1_000_000 + b'"a"]}'
    headers = {"content-type": "application/json"}
    answer = await shared_api.client.post(path, content=body, headers=headers)
    problem(answer, 413, "too-large")


async def test_the_login_form_is_limited_to_the_size_of_a_key(keyed_api: RunningApi) -> None:
    """The form is read before the sender is known: anybody could fill the memory with it."""
    url = httpx.URL(keyed_api.url)
    for length, kind in product(
        ("Content-Length: 9000", "Transfer-Encoding: chunked"),
        ("application/x-www-form-urlencoded", "application/json"),
    ):
        reader, writer = await asyncio.open_connection(url.host, url.port)
        head = f"POST /dashboard/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
        part = b"2328\r\n" if "chunked" in length else b""
        writer.write(f"{head}{length}\r\n\r\n".encode() + part + b"k" * 8_500)
        answer = await asyncio.wait_for(reader.readline(), 8)  # the rest would have ten seconds
        assert answer.split()[1] == b"413"
        writer.transport.abort()


async def test_a_client_that_disconnects_within_a_body_causes_no_error(
    system: System, keys: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    paths = ["/dashboard/login", "/webhooks/github", "/jobs", "/process/references", "/documents"]
    async with serving(system.settings, github_webhook_secret=SecretStr("s" * 32)) as api:
        url = httpx.URL(api.url)
        for path in paths:
            _, writer = await asyncio.open_connection(url.host, url.port)
            kind = "multipart/form-data; boundary=b" if path == "/documents" else "application/json"
            writer.write(
                f"POST {path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {keys['admin']}\r\n"
                f"X-Hub-Signature-256: sha256={'0' * 64}\r\nX-Request-ID: gone\r\n"
                f"Content-Type: {kind}\r\nContent-Length: 100\r\n\r\n{{".encode()
            )
            writer.close()
        lines: list[str] = []

        def are_logged() -> bool:
            output = "".join(capsys.readouterr())
            lines.extend(each for each in output.splitlines() if "gone" in each)
            return len(lines) >= len(paths)

        await eventually(are_logged, what="the lines of the requests")
        assert [each for each in lines if "400" not in each] == [], "nothing but the access log"


async def test_a_payload_beyond_the_message_limit_is_invalid(shared_api: RunningApi) -> None:
    body = NOOP | {"payload": {"text": "x" * (1024 * 1024)}}
    problem(await shared_api.client.post("/jobs", json=body), 422, "invalid")


@pytest.mark.parametrize("limit", ["api_idle_timeout", "api_body_timeout"])
async def test_a_client_that_sends_too_slowly_gets_408(system: System, limit: str) -> None:
    async with serving(system.settings, **{limit: 0.3}) as api:
        host, port = httpx.URL(api.url).host, httpx.URL(api.url).port
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(
            b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        answer = await asyncio.wait_for(reader.read(), 8)  # the other limit is 10 s or 30
        assert b" 408 " in answer.splitlines()[0]
        assert b"/problems/request-timeout" in answer
        writer.close()


async def test_errors_of_the_framework_are_problems_too(shared_api: RunningApi) -> None:
    problem(await shared_api.client.get("/nowhere"), 404, "not-found")
    answer = await shared_api.client.put("/jobs")
    problem(answer, 405, "method-not-allowed")
    assert "GET" in answer.headers["allow"]
    problem(await shared_api.client.get("/jobs", params={"limit": "x"}), 422, "invalid")
    problem(await shared_api.client.get("/jobs/%00"), 422, "invalid")


async def test_a_defect_is_a_problem_without_its_cause(
    shared_api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_args: object, **_options: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(shared_api.state.ledger.job_reads, "list_jobs", broken)
    answer = await shared_api.client.get("/jobs")
    problem(answer, 500, "internal-error")
    assert "secret" not in answer.text


async def test_answers_carry_security_headers_and_the_request_id(shared_api: RunningApi) -> None:
    with_given_id = await shared_api.client.get("/jobs", headers={"X-Request-ID": "trace-7"})
    assert with_given_id.headers["x-request-id"] == "trace-7"
    with_new_id = await shared_api.client.get(
        "/jobs", headers={"X-Request-ID": "no spaces, please"}
    )
    assert len(with_new_id.headers["x-request-id"]) == 16
    assert with_new_id.headers["x-content-type-options"] == "nosniff"
    assert with_new_id.headers["x-frame-options"] == "DENY"
    assert "default-src 'none'" in with_new_id.headers["content-security-policy"]
    assert with_new_id.headers["cache-control"] == "no-store"
    assert "server" not in with_new_id.headers


async def test_the_log_has_neither_keys_nor_bodies_nor_queries(
    keyed_api: RunningApi, keys: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    headers = bearer(keys["admin"]) | {"X-Request-ID": "look-for-me"}
    body = NOOP | {"payload": {"text": "private text"}}
    await keyed_api.client.post("/jobs?token=hidden", json=body, headers=headers)
    await keyed_api.client.post("/jobs", json=body | {"priority": "private"}, headers=headers)
    logged = "".join(capsys.readouterr())
    assert "look-for-me" in logged
    assert "/jobs" in logged
    for secret in (keys["admin"], "private", "hidden"):
        assert secret not in logged


async def test_each_key_is_a_source_of_its_own(
    system: System, keyed_api: RunningApi, keys: dict[str, str]
) -> None:
    own_source = {"source": "nightly"}
    for key, fields in ((keys["publish"], {}), (keys["admin"], {}), (keys["admin"], own_source)):
        answer = await keyed_api.client.post("/jobs", json=NOOP | fields, headers=bearer(key))
        assert answer.status_code == 202
    key_ids = {key.name: key.id for key in await system.ledger.api_keys.list_api_keys()}
    jobs = (await system.ledger.job_reads.list_jobs()).items
    expected = {f"api:{key_ids['publish']}", f"api:{key_ids['admin']}", "nightly"}
    assert {each.source for each in jobs} == expected


async def test_uploads_of_a_key_have_its_source_too(
    system: System, keyed_api: RunningApi, keys: dict[str, str]
) -> None:
    """Fair shares and spending are counted by source, and most documents come as uploads."""
    files = [{"file": ("a.md", f"# Text {number}\n\nwith words".encode())} for number in range(3)]
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/documents", {"files": files[0]}),
        ("/extract/text", {"files": files[1]}),
        ("/extract/references", {"files": files[2]}),
        ("/parse/references", {"json": {"text": "A. Author, A title, 2020."}}),
        ("/documents/generate", {"json": {"count": 1}}),
    ]
    for path, content in requests:
        answer = await keyed_api.client.post(path, headers=bearer(keys["publish"]), **content)
        assert answer.status_code == 202, answer.text
    [key_id] = [
        key.id for key in await system.ledger.api_keys.list_api_keys() if key.name == "publish"
    ]
    jobs = (await system.ledger.job_reads.list_jobs()).items
    assert [each.source for each in jobs] == [f"api:{key_id}"] * len(requests)


async def test_each_key_has_idempotency_keys_of_its_own(
    system: System, keyed_api: RunningApi, keys: dict[str, str]
) -> None:
    """Otherwise one key's request would be answered with the job of another."""
    question = {"type": "classify", "payload": {"text": "The tide.", "labels": ["a", "b"]}}
    crawl = {"start": ["https://example.org/a"]}
    other_key = (await create_key(system.ledger, "other", [Scope.PUBLISH])).key
    for path, body in (("/jobs", NOOP), ("/llm/requests", question), ("/crawl", crawl)):
        ids = []
        for key in (keys["publish"], other_key, keys["publish"]):
            headers = bearer(key) | {"Idempotency-Key": f"order{path}"}
            answer = await keyed_api.client.post(path, json=body, headers=headers)
            assert answer.status_code == 202, answer.text
            ids.append(answer.json().get("job_id") or answer.json()["id"])
        assert ids[0] == ids[2] != ids[1]
    headers = bearer(other_key) | {"Idempotency-Key": "order/jobs"}
    changed = await keyed_api.client.post("/jobs", json=NOOP | {"priority": 1}, headers=headers)
    conflict = problem(changed, 409, "idempotency-conflict")
    assert "api:" not in conflict["detail"]


async def test_a_key_can_not_publish_under_the_source_of_another(
    system: System, keyed_api: RunningApi, keys: dict[str, str]
) -> None:
    key_ids = {key.name: key.id for key in await system.ledger.api_keys.list_api_keys()}
    headers = bearer(keys["publish"])
    question: dict[str, Any] = {
        "type": "classify",
        "payload": {"text": "The tide.", "labels": ["a", "b"]},
    }
    bodies: dict[str, dict[str, Any]] = {"/jobs": NOOP, "/llm/requests": question}
    other_source = f"api:{key_ids['admin']}"
    upper_case = f"API:{key_ids['admin']} "
    reserved = (
        other_source,
        upper_case,
        f"{other_source}/mine",
        "webhook:github",
        "schedule a",
        "jobctl",
    )
    for source, (path, body) in product(reserved, bodies.items()):
        answer = await keyed_api.client.post(path, json=body | {"source": source}, headers=headers)
        assert "source" in problem(answer, 422, "invalid")["detail"] + answer.text, source
    own_source = f"api:{key_ids['publish']}"
    for allowed in (own_source, f"{own_source}/nightly", "nightly", "file-watch"):
        answer = await keyed_api.client.post(
            "/jobs", json=NOOP | {"source": allowed}, headers=headers
        )
        assert answer.status_code == 202, answer.text
    jobs = (await system.ledger.job_reads.list_jobs()).items
    assert {each.source for each in jobs} == {
        own_source,
        f"{own_source}/nightly",
        "nightly",
        "file-watch",
    }


async def test_a_publish_key_sees_only_id_and_state_of_the_crawls_and_backfills_of_others(
    system: System, keyed_api: RunningApi, keys: dict[str, str]
) -> None:
    client, admin_headers = keyed_api.client, bearer(keys["admin"])
    crawl = {"start": ["https://example.org/secret"]}
    started = (await client.post("/crawl", json=crawl, headers=admin_headers)).json()
    files = {"file": ("a.jsonl", b'{"n": 1}\n')}
    stored = (await client.post("/backfills/inputs", files=files, headers=admin_headers)).json()
    options = {name: stored[name] for name in ("key", "format")}
    plan = {"source": "file", "options": options, "job_type": "noop", "reason": "secret"}
    backfill = (await client.post("/backfills", json=plan, headers=admin_headers)).json()
    requests = [
        ("DELETE", f"/crawl/{started['id']}", None),
        ("POST", f"/backfills/{backfill['id']}/pause", None),
        ("PATCH", f"/backfills/{backfill['id']}", {"rate": 2}),
        ("POST", f"/backfills/{backfill['id']}/resume", None),
    ]
    for method, path, body in requests:
        full_answer, short_answer = [
            await client.request(method, path, json=body, headers=headers)
            for headers in (admin_headers, bearer(keys["publish"]))
        ]
        assert short_answer.status_code == 200, short_answer.text
        assert "secret" in full_answer.text
        assert "secret" not in short_answer.text
        assert options["key"] not in short_answer.text
        assert short_answer.json()["id"] in path
