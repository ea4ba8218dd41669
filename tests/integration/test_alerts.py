"""Alerts reach somebody: what the doctor finds and what ends is posted once, and again when it is
over, whichever scheduler is active."""

import asyncio
import hashlib
import hmac
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from switchyard.services.engine.alerts.alerter import Alerter
from switchyard.services.engine.records.bulk import BulkState
from switchyard.services.engine.scheduler.duties import SchedulerIntervals
from switchyard.services.engine.scheduler.scheduler import Scheduler
from tests.support.brokers import TestBroker
from tests.support.eventually import eventually
from tests.support.system import System, open_system

SECRET = "between us"


class Receiver:
    """A webhook's server, which may refuse."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.status = 204
        self.is_endless = False
        self.refused = ""
        """The key of a message that is never taken."""
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/hook/secret-path"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def of(self, status: str) -> list[str]:
        return [each["key"] for each in self.bodies if each["status"] == status]

    def _take(self, body: bytes, signature: str | None) -> None:
        expected = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        assert signature == f"sha256={expected}"
        self.bodies.append(json.loads(body))

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = receiver.status
                if receiver.refused and receiver.refused.encode() in body:
                    status = 400
                if status == 204:
                    receiver._take(body, self.headers["X-Switchyard-Signature"])
                self.send_response(status)
                self.end_headers()
                while receiver.is_endless:
                    try:
                        self.wfile.write(b"and so on" * 4096)
                    except OSError:
                        return

            def log_message(self, *args: object) -> None:
                """Nothing: the test says what is wrong."""

        return Handler


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
async def system(
    broker310: TestBroker, sqlite_url: str, receiver: Receiver
) -> AsyncIterator[System]:
    async with open_system(
        broker310,
        sqlite_url,
        alert_webhook=SecretStr(receiver.url),
        alert_secret=SecretStr(SECRET),
        alert_interval=0.05,
    ) as opened:
        yield opened


@asynccontextmanager
async def scheduler_of(system: System) -> AsyncIterator[Scheduler]:
    scheduler = Scheduler(
        system.settings, system.registry, system.ledger, intervals=SchedulerIntervals(turn=0.05)
    )
    running = asyncio.create_task(scheduler.run())
    try:
        yield scheduler
    finally:
        scheduler.stop()
        await running


async def test_a_finding_is_told_once_and_again_when_it_is_over(
    system: System, receiver: Receiver
) -> None:
    await system.publish("hot.noop", {})

    async def is_kept() -> bool:
        return "queue-unworked" in await system.ledger.alerts.sent_alerts()

    async with scheduler_of(system):
        await eventually(is_kept)  # which follows its delivery
    assert receiver.of("firing").count("queue-unworked") == 1
    async with scheduler_of(system):  # another one, which finds what the first has told
        await system.start_worker()
        await eventually(lambda: "queue-unworked" in receiver.of("resolved"))
    assert receiver.of("firing").count("queue-unworked") == 1
    told = next(each for each in receiver.bodies if each["key"] == "queue-unworked")
    assert "hot.llm" in told["detail"]
    assert "jobctl worker" in told["remedy"]
    assert str(await system.ledger.system.system()) == told["system"]
    assert told["text"].startswith("🔴")


async def test_an_operation_that_ended_is_told_once(system: System, receiver: Receiver) -> None:
    await system.ledger.bulk.create_bulk(
        "backfill-1", kind="backfill", title="all of it", spec={}, created_by="me"
    )
    await system.ledger.bulk.move_bulk(
        "backfill-1", BulkState.CANCELLED, among=[BulkState.WAITING], note="enough"
    )
    alerter = Alerter(system.settings, system.ledger)
    await alerter.check()
    await alerter.check()
    ended = [each for each in receiver.bodies if each["status"] == "ended"]
    assert [each["detail"] for each in ended] == ["all of it: enough"]
    assert ended[0]["remedy"] == "`jobctl backfill show backfill-1`"


async def test_what_was_not_taken_is_sent_again_and_the_address_stays_secret(
    system: System, receiver: Receiver
) -> None:
    await system.publish("hot.noop", {})
    receiver.status = 503
    with capture_logs() as logs:
        async with scheduler_of(system):
            await eventually(lambda: any("not delivered" in line["event"] for line in logs))
            receiver.status = 204
            await eventually(lambda: "queue-unworked" in receiver.of("firing"))
    assert "secret-path" not in json.dumps(logs, default=str)


async def test_what_else_the_server_says_is_not_listened_to(
    system: System, receiver: Receiver
) -> None:
    await system.ledger.bulk.create_bulk(
        "backfill-3", kind="backfill", title="all", spec={}, created_by="me"
    )
    await system.ledger.bulk.move_bulk("backfill-3", BulkState.CANCELLED, among=[BulkState.WAITING])
    receiver.status, receiver.is_endless = 200, True
    try:
        async with asyncio.timeout(10):
            await Alerter(system.settings, system.ledger).check()
    finally:
        receiver.is_endless = False


async def test_a_message_that_is_refused_holds_up_no_other(
    system: System, receiver: Receiver
) -> None:
    for number in range(2):
        await system.ledger.bulk.create_bulk(
            f"backfill-{number}", kind="backfill", title=f"{number}", spec={}, created_by="me"
        )
        await system.ledger.bulk.move_bulk(
            f"backfill-{number}", BulkState.CANCELLED, among=[BulkState.WAITING]
        )
    receiver.refused = "backfill-1.cancelled"
    await Alerter(system.settings, system.ledger).check()
    assert receiver.of("ended") == ["backfill-0.cancelled"]
    receiver.refused = ""
    await Alerter(system.settings, system.ledger).check()
    assert receiver.of("ended") == ["backfill-0.cancelled", "backfill-1.cancelled"]


async def test_slack_gets_a_text_in_which_nobody_is_mentioned(
    system: System, receiver: Receiver
) -> None:
    settings = system.settings.model_copy(update={"alert_format": "slack"})
    await system.ledger.bulk.create_bulk(
        "backfill-2", kind="backfill", title="<!channel>", spec={}, created_by="me"
    )
    await system.ledger.bulk.move_bulk("backfill-2", BulkState.CANCELLED, among=[BulkState.WAITING])
    await Alerter(settings, system.ledger).check()
    (message,) = receiver.bodies
    assert list(message) == ["text"]
    assert "&lt;!channel&gt;" in message["text"]
