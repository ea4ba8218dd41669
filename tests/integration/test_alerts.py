"""Alerts: a finding of the doctor is posted once, and once more when it is over, and an ended
operation once, whichever scheduler is active."""

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
    """The server of a webhook, which can refuse messages."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.status = 204
        self.is_endless = False
        """Whether the body of a response never ends."""
        self.refused_key = ""
        """The key of a message that is answered with 400."""
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/hook/secret-path"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def keys_with(self, status: str) -> list[str]:
        return [body["key"] for body in self.bodies if body["status"] == status]

    def _record(self, body: bytes, signature: str | None) -> None:
        expected = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        assert signature == f"sha256={expected}"
        self.bodies.append(json.loads(body))

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = receiver.status
                if receiver.refused_key and receiver.refused_key.encode() in body:
                    status = 400
                if status == 204:
                    receiver._record(body, self.headers["X-Switchyard-Signature"])
                self.send_response(status)
                self.end_headers()
                while receiver.is_endless:
                    try:
                        self.wfile.write(b"and so on" * 4096)
                    except OSError:
                        return

            def log_message(self, *args: object) -> None:
                """Log nothing."""

        return Handler


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    yield server
    server.close()


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
async def running_scheduler(system: System) -> AsyncIterator[Scheduler]:
    scheduler = Scheduler(
        system.settings, system.registry, system.ledger, intervals=SchedulerIntervals(turn=0.05)
    )
    running = asyncio.create_task(scheduler.run())
    try:
        yield scheduler
    finally:
        scheduler.stop()
        await running


async def test_a_finding_is_sent_once_and_again_when_it_is_over(
    system: System, receiver: Receiver
) -> None:
    await system.publish("hot.noop", {})

    async def is_recorded() -> bool:
        return "queue-unworked" in await system.ledger.alerts.sent_alerts()

    async with running_scheduler(system):
        await eventually(is_recorded)  # after its delivery
    assert receiver.keys_with("firing").count("queue-unworked") == 1
    async with running_scheduler(system):  # another one, which reads what the first has sent
        await system.start_worker()
        await eventually(lambda: "queue-unworked" in receiver.keys_with("resolved"))
    assert receiver.keys_with("firing").count("queue-unworked") == 1
    alert = next(body for body in receiver.bodies if body["key"] == "queue-unworked")
    assert "hot.llm" in alert["detail"]
    assert "jobctl worker" in alert["remedy"]
    assert str(await system.ledger.system.system()) == alert["system"]
    assert alert["text"].startswith("🔴")


async def test_an_ended_operation_is_sent_once(system: System, receiver: Receiver) -> None:
    await system.ledger.bulk.create_bulk(
        "backfill-1", kind="backfill", title="all of it", spec={}, created_by="me"
    )
    await system.ledger.bulk.move_bulk(
        "backfill-1", BulkState.CANCELLED, among=[BulkState.WAITING], note="enough"
    )
    alerter = Alerter(system.settings, system.ledger)
    await alerter.check()
    await alerter.check()
    ended_alerts = [body for body in receiver.bodies if body["status"] == "ended"]
    assert [alert["detail"] for alert in ended_alerts] == ["all of it: enough"]
    assert ended_alerts[0]["remedy"] == "`jobctl backfill show backfill-1`"


async def test_a_refused_message_is_sent_again_and_the_url_is_not_logged(
    system: System, receiver: Receiver
) -> None:
    await system.publish("hot.noop", {})
    receiver.status = 503
    with capture_logs() as logs:
        async with running_scheduler(system):
            await eventually(lambda: any("not delivered" in line["event"] for line in logs))
            receiver.status = 204
            await eventually(lambda: "queue-unworked" in receiver.keys_with("firing"))
    assert "secret-path" not in json.dumps(logs, default=str)


async def test_an_endless_response_is_not_read(system: System, receiver: Receiver) -> None:
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
    receiver.refused_key = "backfill-1.cancelled"
    await Alerter(system.settings, system.ledger).check()
    assert receiver.keys_with("ended") == ["backfill-0.cancelled"]
    receiver.refused_key = ""
    await Alerter(system.settings, system.ledger).check()
    assert receiver.keys_with("ended") == ["backfill-0.cancelled", "backfill-1.cancelled"]


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
