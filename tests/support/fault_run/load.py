"""The load of a fault run: jobs come in by five doors, each sent until it is accepted."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aio_pika
from aio_pika.exceptions import AMQPError, DeliveryError

from switchyard.broker.errors import PublishError
from switchyard.broker.message import JobMessage, Metadata
from switchyard.broker.publish.publisher import Publisher
from switchyard.services.common.settings import Settings
from switchyard.services.engine.jobs.registry import Registry
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.publishing.publisher import JobPublisher, Published
from switchyard.services.engine.records.errors import LedgerUnavailable
from tests.support.fault_run.chronicle import Chronicle
from tests.support.fault_run.doors import PAUSE, Api

MAX_ATTEMPTS = 3
FILLING_JOBS = 140
"""More jobs than `vlm_ocr` holds."""
WORDS = ("tide", "moon", "harbour", "lantern", "river", "granite", "orchard", "winter", "copper")


@dataclass
class Accepted:
    """Jobs, backfills and documents that were accepted."""

    jobs: dict[str, str] = field(default_factory=dict)
    """The door of each job whose id is known."""
    backfills: dict[str, int] = field(default_factory=dict)
    """The number of items of each backfill, by id."""
    documents: set[str] = field(default_factory=set)


def choose_task(dice: Random, number: int) -> tuple[str, dict[str, Any]]:
    """Choose a job at random; return its routing key and payload."""
    lane = dice.choice(["hot", "backfill", "backfill"])
    payload: dict[str, Any] = {"number": number, "seconds": round(dice.uniform(0.01, 0.4), 3)}
    match dice.choices(["plain", "retried", "dies", "next", "crunch", "page"], [8, 3, 1, 3, 2, 2])[
        0
    ]:
        case "retried":
            payload["fail_attempts"] = dice.choice([1, 2])
        case "dies":
            payload["dies"] = dice.choice(["permanent", "exhausted"])
        case "next":
            payload["children"] = dice.randint(1, 3)
        case "crunch":
            return f"{lane}.fault_crunch", payload
        case "page":
            return "vlm_ocr.fault_page", payload
    return f"{lane}.fault_task", payload


class Load:
    """Publishes jobs until it is told to stop, and then until all of these are accepted."""

    def __init__(
        self,
        seed: int,
        settings: Settings,
        registry: Registry,
        ledger: Ledger,
        api: Api,
        chronicle: Chronicle,
    ) -> None:
        self.accepted = Accepted()
        self.refused = 0
        """Number of jobs that a full lane refused: these need not run."""
        self._seed = seed
        self._url = settings.require_amqp_url()
        self._publisher = Publisher(settings, name="fault run")
        self._jobs = JobPublisher(registry, ledger, self._publisher)
        self._api = api
        self._chronicle = chronicle
        self._stopping = asyncio.Event()
        self._count = 0

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        """Publish by all doors, until stopped and all jobs are accepted."""
        doors: dict[str, tuple[Callable[[Random], Awaitable[None]], float]] = {
            "http": (self._publish_by_http, 0.25),
            "amqp": (self._publish_by_amqp, 0.25),
            "python": (self._publish_batch, 3.0),
            "file": (self._run_backfill, 3.0),
            "upload": (self._upload_document, 6.0),
        }
        async with asyncio.TaskGroup() as group:
            for name, (door, pause) in doors.items():
                group.create_task(self._repeat(name, door, pause))
        await self._publisher.close()

    async def _repeat(
        self, name: str, door: Callable[[Random], Awaitable[None]], pause: float
    ) -> None:
        dice = Random(f"{self._seed} {name}")
        while not self._stopping.is_set():
            await door(dice)
            try:
                await asyncio.wait_for(self._stopping.wait(), dice.uniform(0, 2 * pause))
            except TimeoutError:
                continue

    def _choose_task(self, dice: Random) -> tuple[str, dict[str, Any]]:
        self._count += 1
        return choose_task(dice, self._count)

    # --- POST /jobs -------------------------------------------------------------------------

    async def _publish_by_http(self, dice: Random) -> None:
        """Publish over HTTP with an idempotency key. One request in five is repeated, and must give
        the same job."""
        key, task = f"{self._seed}-{self._count}", self._choose_task(dice)
        job_id = await self._post(key, *task)
        self.accepted.jobs[job_id] = "http"
        if dice.random() < 0.2 and (repeated_id := await self._post(key, *task)) != job_id:
            self._chronicle.blame(f"key {key} was job {job_id}, and is {repeated_id}")
        if dice.random() < 0.2:
            known_id = dice.choice([*self.accepted.jobs])
            if self.accepted.jobs[known_id] == "http":  # others may not be in the ledger yet
                await self._api.request_once("GET", f"/jobs/{known_id}")

    async def _post(self, key: str, routing_key: str, payload: dict[str, Any]) -> str:
        body = {"routing_key": routing_key, "payload": payload, "max_attempts": MAX_ATTEMPTS}
        answer = await self._api.request_until_answered(
            "POST", "/jobs", json=body, headers={"Idempotency-Key": key}
        )
        return str(answer.json()["job_id"])

    # --- AMQP -------------------------------------------------------------------------------

    async def _publish_by_amqp(self, dice: Random) -> None:
        """Publish some jobs on one connection, as a program in another language does."""
        remaining = [self._message(*self._choose_task(dice)) for _ in range(dice.randint(1, 5))]
        while remaining:
            try:
                async with asyncio.timeout(30), await aio_pika.connect(self._url) as connection:
                    channel = await connection.channel(publisher_confirms=True)
                    exchange = await channel.get_exchange("jobs.topic", ensure=False)
                    while remaining:
                        message, routing_key = remaining[0]
                        body = aio_pika.Message(message.encode(), delivery_mode=2)
                        await exchange.publish(body, routing_key, mandatory=True, timeout=10)
                        self.accepted.jobs[message.job_id] = "amqp"
                        del remaining[0]
            except (OSError, TimeoutError, AMQPError, DeliveryError, RuntimeError):
                # Refused, cut off, or not confirmed: it is sent again under the same id.
                await asyncio.sleep(PAUSE)

    def _message(self, routing_key: str, payload: dict[str, Any]) -> tuple[JobMessage, str]:
        message = JobMessage(
            job_type=routing_key.partition(".")[2],
            payload=payload,
            metadata=Metadata(source="amqp", max_attempts=MAX_ATTEMPTS),
        )
        return message, routing_key

    # --- JobPublisher -----------------------------------------------------------------------

    async def _publish_batch(self, dice: Random) -> None:
        remaining = [
            self._request(f"batch-{self._count}", *self._choose_task(dice))
            for _ in range(dice.randint(5, 25))
        ]
        while remaining:
            remaining = await self._publish(remaining)
            if remaining:
                await asyncio.sleep(PAUSE)

    async def fill_lane(self) -> None:
        """Publish more to `vlm_ocr` than it holds; jobs that it refuses are not sent again."""
        requests = []
        for number in range(FILLING_JOBS):
            self._count += 1
            payload = {"seconds": 0.01, "number": number}
            requests.append(self._request(f"fill-{self._count}", "vlm_ocr.fault_page", payload))
        self.refused += len(await self._publish(requests))

    def _request(self, name: str, routing_key: str, payload: dict[str, Any]) -> JobRequest:
        job_id = f"{name}-{self._seed}"
        return JobRequest(routing_key, payload, job_id=job_id, max_attempts=MAX_ATTEMPTS)

    async def _publish(self, requests: list[JobRequest]) -> list[JobRequest]:
        """Publish jobs, and return those that were not accepted."""
        try:
            outcomes = await self._jobs.publish_many(requests)
        except LedgerUnavailable:
            return requests
        remaining: list[JobRequest] = []
        for request, outcome in zip(requests, outcomes, strict=True):
            if isinstance(outcome, Published):
                self.accepted.jobs[outcome.job_id] = "python"
            elif isinstance(outcome, PublishError):
                remaining.append(request)
            else:
                raise outcome
        return remaining

    # --- POST /backfills --------------------------------------------------------------------

    async def _run_backfill(self, dice: Random) -> None:
        """Run a backfill of a file to its end, pausing and resuming it on the way."""
        items = [
            {"number": number, "seconds": 0.02, "fail_attempts": int(dice.random() < 0.1)}
            for number in range(dice.randint(50, 150))
        ]
        text = "".join(f"{json.dumps(item)}\n" for item in items).encode()
        stored = await self._api.request_until_answered(
            "POST", "/backfills/inputs", lambda: {"files": {"file": ("items.jsonl", text)}}
        )
        request = {
            "source": "file",
            "options": {name: stored.json()[name] for name in ("key", "format")},
            "job_type": "fault_task",
            "rate": 20,
        }
        backfill = (
            await self._api.request_until_answered("POST", "/backfills", json=request)
        ).json()["id"]
        self.accepted.backfills[backfill] = len(items)
        path = f"/backfills/{backfill}"
        while (await self._api.request_until_answered("GET", path)).json()["state"] != "completed":
            await asyncio.sleep(dice.uniform(1, 5))
            if not self._stopping.is_set():
                await self._api.request_until_answered("POST", f"{path}/pause", allowed=(409,))
                await asyncio.sleep(dice.uniform(0, 2))
            await self._api.request_until_answered("POST", f"{path}/resume", allowed=(409,))

    # --- POST /documents --------------------------------------------------------------------

    async def _upload_document(self, dice: Random) -> None:
        """Upload a text; one in five is uploaded twice."""
        self._count += 1
        text = " ".join(dice.choices(WORDS, k=200)) + f" number {self._count}."
        upload = {"files": {"file": (f"note-{self._count}.txt", text.encode())}}
        for _ in range(2 if dice.random() < 0.2 else 1):
            answer = await self._api.request_until_answered("POST", "/documents", lambda: upload)
            self.accepted.documents.add(answer.json()["document_id"])
