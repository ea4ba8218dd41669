"""Limits of connections against hostile clients, which speak plain TCP."""

import asyncio
import socket
from collections.abc import AsyncIterator

import httpx
import pytest

from switchyard.api.middleware import connections
from switchyard.services.engine.access.api_keys import Scope, create_key
from tests.support.api_server import RunningApi, problem, serving
from tests.support.eventually import eventually
from tests.support.system import System

MEGABYTE = 1024 * 1024
GET = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = (
    b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


@pytest.fixture
def api(shared_api: RunningApi) -> RunningApi:
    """Return the API that tests without settings of their own share."""
    return shared_api


class Sender:
    """A client that sends any bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, api: RunningApi) -> "Sender":
        url = httpx.URL(api.url)
        return cls(*await asyncio.open_connection(url.host, url.port))

    async def pour(self, first: bytes, repeated: bytes, max_bytes: int) -> int:
        """Send `first`, then `repeated` again and again; return how many bytes were taken before
        the connection was closed, or `max_bytes`."""
        sent = 0
        try:
            self.writer.write(first)
            while sent < max_bytes:
                self.writer.write(repeated)
                await self.writer.drain()
                sent += len(repeated)
        except ConnectionError:
            pass
        return sent

    async def answer(self) -> bytes:
        """Return all that the server sends until it closes the connection."""
        try:
            return await asyncio.wait_for(self.reader.read(), 10)
        except ConnectionError:
            return b""
        finally:
            self.writer.close()


@pytest.mark.parametrize(
    ("first", "repeated"),
    [
        (b"GET /", b"x" * 65536),
        (GET + b"X-Long: ", b"x" * 65536),
        (GET, b"".join(b"X-%d: y\r\n" % number for number in range(5000))),
        (CHUNKED + b"1;", b"x" * 65536),
        (CHUNKED + b"1\r\n{\r\n0\r\nX-Trailer: ", b"x" * 65536),
    ],
    ids=["address", "one header", "many headers", "chunk extension", "trailer"],
)
async def test_a_header_without_an_end_is_refused_soon(
    api: RunningApi, first: bytes, repeated: bytes
) -> None:
    sender = await Sender.to(api)
    # 32 MB are more than the buffers on the way hold.
    assert await sender.pour(first, repeated, 64 * MEGABYTE) < 32 * MEGABYTE
    sender.writer.close()
    assert (await api.client.get("/health/live")).is_success


async def test_a_header_that_is_too_long_is_refused_with_431(api: RunningApi) -> None:
    sender = await Sender.to(api)
    sender.writer.write(GET + b"X-Long: " + b"x" * connections.MAX_HEADER_BYTES)
    assert (await sender.answer()).startswith(b"HTTP/1.1 431 ")


async def test_too_many_headers_are_refused(api: RunningApi) -> None:
    sender = await Sender.to(api)
    sender.writer.write(GET + b"X: y\r\n" * connections.MAX_HEADERS + b"\r\n")
    assert (await sender.answer()).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("name", [b"Idempotency-Key", b"content-type"])
async def test_a_repeated_header_of_one_value_is_refused(api: RunningApi, name: bytes) -> None:
    for values, status in (((b"a",), 200), ((b"a", b"a"), 400), ((b"a", b"b"), 400)):
        sender = await Sender.to(api)
        lines = b"".join(b"%b: %b\r\n" % (name, value) for value in values)
        sender.writer.write(GET + lines + b"Connection: close\r\n\r\n")
        assert (await sender.answer()).startswith(b"HTTP/1.1 %d" % status)


@pytest.mark.parametrize(
    ("version", "hosts", "status"),
    [
        (b"1.1", (b"localhost",), 200),
        (b"1.1", (b"[::1]:8000",), 200),
        (b"1.1", (), 400),
        (b"1.1", (b"localhost", b"localhost"), 400),
        (b"1.1", (b"localhost", b"elsewhere"), 400),
        (b"1.1", (b"local host",), 400),
        (b"1.1", (b"localhost/path",), 400),
        (b"1.0", (), 200),
        (b"1.0", (b"localhost", b"elsewhere"), 400),
    ],
)
async def test_a_request_names_one_host(
    api: RunningApi, version: bytes, hosts: tuple[bytes, ...], status: int
) -> None:
    sender = await Sender.to(api)
    names = b"".join(b"Host: %b\r\n" % host for host in hosts)
    sender.writer.write(
        b"GET /health/live HTTP/%b\r\n%bConnection: close\r\n\r\n" % (version, names)
    )
    assert (await sender.answer()).startswith(b"HTTP/1.1 %d " % status)


async def test_long_bodies_in_small_chunks_are_taken(system: System, api: RunningApi) -> None:
    body = b'{"routing_key": "hot.noop", "payload": {"text": "' + b"x" * 60_000 + b'"}}'

    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 7):
            yield body[start : start + 7]

    answer = await api.client.post(
        "/jobs", content=parts(), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 202


@pytest.mark.parametrize("sent", [b"", b"\r\n\r\n", b"GET", GET, GET + b"X-Half: "], ids=repr)
async def test_a_client_that_does_not_send_its_header_in_time_gets_408(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.3)
    sender = await Sender.to(api)
    sender.writer.write(sent)
    assert (await sender.answer()).startswith(b"HTTP/1.1 408 ")


async def test_a_client_that_drips_bytes_on_an_idle_connection_is_disconnected(
    api: RunningApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.5)
    sender = await Sender.to(api)
    sender.writer.write(GET + b"\r\n")
    assert (await sender.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")

    async def drip() -> None:
        while not sender.writer.is_closing():
            sender.writer.write(b"\r\n")
            await asyncio.sleep(0.05)

    dripping = asyncio.create_task(drip())
    answer = await sender.answer()  # ends only when the connection is closed
    # A byte after that resets the connection, sometimes before the answer is read.
    assert answer == b"" or b"HTTP/1.1 408 " in answer
    dripping.cancel()


async def test_a_refused_upload_is_not_read_on(system: System) -> None:
    await create_key(system.ledger, "somebody", [Scope.PUBLISH])
    async with serving(system.settings) as api:
        sender = await Sender.to(api)
        first = (
            b"POST /documents HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90000000\r\n"
            b"Content-Type: multipart/form-data; boundary=b\r\n\r\n"
        )
        sender.writer.write(first)
        head = await sender.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 401 ")
        assert b"\r\nconnection: close\r\n" in head.lower()
        assert await sender.pour(b"", b"x" * 65536, 80 * MEGABYTE) < 32 * MEGABYTE
        sender.writer.close()


@pytest.mark.parametrize(
    ("request_line", "headers", "status"),
    [
        (b"POST /nowhere", b"", 404),
        (b"PUT /documents", b"", 405),
        (b"POST /documents", b"Content-Type: text/plain\r\n", 400),
        (b"POST /documents", b"Content-Type: multipart/form-data; boundary=b\r\n", 400),
        (b"POST /backfills/inputs", b"Content-Type: text/plain\r\n", 422),
        (b"POST /documents", b"Expect: 100-continue\r\nContent-Length: 9000000000\r\n", 413),
    ],
)
async def test_an_answer_before_the_end_of_a_body_announces_the_close_of_the_connection(
    api: RunningApi, request_line: bytes, headers: bytes, status: int
) -> None:
    sender = await Sender.to(api)
    if b"Content-Length" not in headers:
        headers += b"Content-Length: 100000\r\n"
    sender.writer.write(
        request_line + b" HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n--c\r\nnonsense"
    )
    head = await asyncio.wait_for(sender.reader.readuntil(b"\r\n\r\n"), 10)
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"\r\nconnection: close\r\n" in head.lower()
    sender.writer.close()


async def test_a_client_that_still_sends_a_refused_body_can_read_the_whole_answer(
    api: RunningApi,
) -> None:
    url = httpx.URL(api.url)
    with socket.create_connection((url.host, url.port or 80), timeout=10) as client:
        head = b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n"
        await asyncio.to_thread(client.sendall, head)
        # The answer has arrived; the client has not read it.
        await asyncio.to_thread(client.recv, 100_000, socket.MSG_PEEK)
        for _ in range(20):
            await asyncio.to_thread(client.sendall, b"x" * 10_000)
        answer = b""
        while part := await asyncio.to_thread(client.recv, 100_000):
            answer += part
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert answer.endswith(b"}")


async def test_a_connection_stays_open_after_a_request_that_was_read_and_refused(
    api: RunningApi,
) -> None:
    sender = await Sender.to(api)
    refused = b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
    for _ in range(2):
        sender.writer.write(refused)
        head = await asyncio.wait_for(sender.reader.readuntil(b"\r\n\r\n"), 10)
        assert head.startswith(b"HTTP/1.1 404 ")
        assert b"connection: close" not in head.lower()
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        await sender.reader.readexactly(length)
    sender.writer.close()


async def test_a_pipelined_request_is_read_to_its_end(api: RunningApi) -> None:
    body = b'{"routing_key": "hot.noop", "payload": {}}'
    sender = await Sender.to(api)
    sender.writer.write(
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        b"POST /jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body[:5]
    )
    assert (await sender.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    sender.writer.write(body[5:])
    assert b"HTTP/1.1 202 " in await sender.answer()


async def test_a_stream_ends_with_its_client_even_if_requests_wait_behind_it(
    system: System, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(system.settings, api_heartbeat=0.05) as api:
        sender = await Sender.to(api)
        sender.writer.write(
            b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n" + 3 * (GET + b"\r\n")
        )
        assert (await sender.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        assert api.state.broker is not None
        feed = api.state.broker.feed
        await eventually(lambda: feed.subscribers == 1, what="the stream begins behind its head")
        sender.writer.transport.abort()
        await eventually(lambda: feed.subscribers == 0, what="the stream ends")
    assert "unhandled exception" not in capsys.readouterr().out


async def test_connections_beyond_the_limit_are_closed_at_once(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 3)
    async with serving(system.settings) as api:
        senders = [await Sender.to(api) for _ in range(8)]
        ends = [asyncio.create_task(each.reader.read()) for each in senders]
        await eventually(lambda: sum(each.done() for each in ends) == 5)
        # The other connections get answers.
        for sender, end in zip(senders, ends, strict=True):
            if not end.done():
                sender.writer.write(GET + b"Connection: close\r\n\r\n")
        answers = [await end for end in ends]
        assert sum(answer.startswith(b"HTTP/1.1 200 ") for answer in answers) == 3
        for each in senders:
            each.writer.close()


@pytest.mark.parametrize("trusted", [(), ("127.0.0.1",)])
async def test_a_forwarded_address_is_believed_only_of_a_trusted_proxy(
    system: System, trusted: tuple[str, ...]
) -> None:
    limits = {"api_rate_limit": 0.01, "api_rate_burst": 2}
    async with serving(system.settings, api_trusted_proxies=trusted, **limits) as api:
        statuses = [
            (await api.client.get("/jobs", headers={"X-Forwarded-For": f"10.0.0.{n}"})).status_code
            for n in range(4)
        ]
    # Without keys only this machine is let in: of another one, if the header is believed.
    assert statuses == ([403] * 4 if trusted else [200, 200, 429, 429])


async def test_no_path_is_answered_with_a_redirect(api: RunningApi) -> None:
    answer = await api.client.get("/admin/lanes/", headers={"Host": "localhost"})
    problem(answer, 404, "not-found")
    assert "location" not in answer.headers


async def test_the_error_for_a_method_lists_the_methods_of_the_path(api: RunningApi) -> None:
    answer = await api.client.put("/backfills/preview")
    problem(answer, 405, "method-not-allowed")
    assert answer.headers["allow"] == "POST"


def request_for(path: str, *, key: str = "", headers: bytes = b"", method: str = "GET") -> bytes:
    """Return the head of a request; `headers` are further lines."""
    authorization = f"Authorization: Bearer {key}\r\n" if key else ""
    return (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{authorization}".encode()
        + headers
        + b"\r\n"
    )


def connection_count(api: RunningApi) -> int:
    return len(api.server.server_state.connections)


def send_without_reading(api: RunningApi, request: bytes) -> socket.socket:
    """Send a request, read nothing of the answer, and return the connection."""
    url = httpx.URL(api.url)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((url.host, url.port or 80))
    client.sendall(request)
    return client


@pytest.mark.parametrize(
    "request_", [GET + b"\r\n" + request_for("/openapi.json"), request_for("/openapi.json")]
)
async def test_a_client_that_does_not_read_is_disconnected(
    system: System, monkeypatch: pytest.MonkeyPatch, request_: bytes
) -> None:
    monkeypatch.setattr(connections, "WRITE_TIMEOUT", 0.5)
    async with serving(system.settings) as api:
        clients = [send_without_reading(api, request_) for _ in range(5)]
        await eventually(lambda: connection_count(api) == 5, what="the connections")
        await eventually(lambda: connection_count(api) == 0, what="their end")
        for each in clients:
            each.close()


async def test_a_client_that_reads_too_slowly_is_disconnected(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "WRITE_TIMEOUT", 0.5)
    monkeypatch.setattr(connections, "MIN_READ_RATE", 100_000_000)
    async with serving(system.settings) as api:
        with send_without_reading(api, request_for("/openapi.json")) as client:
            await eventually(lambda: connection_count(api) == 1, what="the connection")

            def is_disconnected() -> bool:
                client.recv(10_000)
                return connection_count(api) == 0

            await eventually(is_disconnected, what="its end")


async def test_a_client_that_reads_steadily_gets_the_whole_answer(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "WRITE_TIMEOUT", 1.0)
    async with serving(system.settings) as api:
        whole = (await api.client.get("/openapi.json")).content
        closing = request_for("/openapi.json", headers=b"Connection: close\r\n")
        with send_without_reading(api, closing) as client:
            answer = b""
            while part := await asyncio.to_thread(client.recv, 8192):
                answer += part
                await asyncio.sleep(0.03)  # in all longer than the time-out
        assert answer.endswith(whole)


async def test_a_stream_whose_client_reads_stays_open(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "WRITE_TIMEOUT", 0.1)
    async with serving(system.settings, api_heartbeat=0.05) as api:
        sender = await Sender.to(api)
        sender.writer.write(request_for("/events"))
        for _ in range(30):
            await asyncio.wait_for(sender.reader.readuntil(b"still here"), 10)
        sender.writer.close()


async def test_a_stream_whose_client_does_not_read_is_closed(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "WRITE_TIMEOUT", 0.5)
    async with serving(system.settings, api_heartbeat=0.001) as api:
        with send_without_reading(api, request_for("/events")):
            await eventually(lambda: api.state.streams.used == 1, what="the stream")
            await eventually(lambda: api.state.streams.used == 0, what="its end")
            assert connection_count(api) == 0


async def test_answers_that_nobody_reads_take_bounded_memory(system: System) -> None:
    keys = [(await create_key(system.ledger, name, [Scope.READ])).key for name in "ab"]
    job_id = await system.publish("hot.noop", {"text": "x" * 900_000})
    async with serving(system.settings, api_max_in_flight=4 * MEGABYTE) as api:
        path = f"/jobs/{job_id}"
        headers = {"Authorization": f"Bearer {keys[0]}"}
        clients = [send_without_reading(api, request_for(path, key=keys[0])) for _ in range(5)]
        # Wait for all five first: two answers fit, and neither may be the one requested below.
        for each in clients:
            assert await asyncio.to_thread(each.recv, 1, socket.MSG_PEEK)
        answers: list[httpx.Response] = []

        async def is_refused() -> bool:
            answers.append(await api.client.get(path, headers=headers))
            return answers[-1].status_code == 503

        await eventually(is_refused, what="the refusal")
        problem(answers[-1], 503, "overloaded")
        assert int(answers[-1].headers["retry-after"]) >= 1
        other_key_answer = await api.client.get(
            path, headers={"Authorization": f"Bearer {keys[1]}"}
        )
        assert other_key_answer.status_code == 200
        assert len(other_key_answer.content) > 900_000
        for each in clients:
            each.close()

        async def is_answered() -> bool:
            return (await api.client.get(path, headers=headers)).status_code == 200

        await eventually(is_answered, what="room again")


@pytest.mark.parametrize(
    ("sent", "unsent_bytes"),
    [(b'{"payload": "' + b"x" * 60_000, 30_000), (b"[" * 2_000, 10)],
    ids=["long", "many values"],
)
async def test_bodies_in_flight_share_one_budget(
    system: System, sent: bytes, unsent_bytes: int
) -> None:
    keys = [(await create_key(system.ledger, name, [Scope.PUBLISH])).key for name in "ab"]
    body_headers = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % (
        len(sent) + unsent_bytes
    )
    async with serving(system.settings, api_max_in_flight=MEGABYTE) as api:
        senders = []
        for key in keys:
            for _ in range(20):
                sender = await Sender.to(api)
                sender.writer.write(
                    request_for("/jobs", method="POST", key=key, headers=body_headers)
                )
                sender.writer.write(sent)
                senders.append(sender)
            head = await asyncio.wait_for(
                asyncio.wait(
                    [asyncio.create_task(each.reader.readuntil(b"\r\n\r\n")) for each in senders],
                    return_when=asyncio.FIRST_COMPLETED,
                ),
                10,
            )
            answered, waiting = head
            assert all(each.result().startswith(b"HTTP/1.1 503 ") for each in answered)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        for each in senders:
            each.writer.transport.abort()
        headers = {"Authorization": f"Bearer {keys[0]}"}

        async def is_taken() -> bool:
            job = {"routing_key": "hot.noop", "payload": {}}
            return (await api.client.post("/jobs", json=job, headers=headers)).status_code == 202

        await eventually(is_taken, what="room again")


async def test_the_number_of_pipelined_requests_is_limited(api: RunningApi) -> None:
    sender = await Sender.to(api)
    sender.writer.write(request_for("/health/live") * 3 * connections.MAX_PIPELINED)
    assert (await sender.answer()).count(b"HTTP/1.1 200 ") <= connections.MAX_PIPELINED


async def test_one_address_can_not_take_all_connections(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS_PER_CLIENT", 3)
    async with serving(system.settings) as api:
        url = httpx.URL(api.url)
        senders = [await Sender.to(api) for _ in range(6)]
        ends = [asyncio.create_task(each.reader.read()) for each in senders]
        await eventually(lambda: sum(each.done() for each in ends) == 3)
        transport = httpx.AsyncHTTPTransport(local_address="127.0.0.9")
        async with httpx.AsyncClient(transport=transport, base_url=url) as other_client:
            assert (await other_client.get("/health/live")).is_success
        for each in senders:
            each.writer.close()
        await eventually(lambda: connection_count(api) == 0, what="the end of all connections")
        assert (await api.client.get("/health/live")).is_success
