"""Questions that go through a Batch API, collected and sent without a broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import text

from switchyard.broker.publish.publisher import Publisher
from switchyard.services.common.settings import Settings
from switchyard.services.engine.ledger import Ledger
from switchyard.services.llm.batch_collector import WaitingForBatch
from switchyard.services.llm.batch_runner import BatchRunner
from switchyard.services.llm.gate import Urgency
from switchyard.services.llm.model_client import ModelClient
from switchyard.services.llm.records.llm_spend import Requester
from tests.support.llm_batches import Batch as RemoteBatch
from tests.support.llm_server import FakeLlmServer
from tests.support.made import message, new_job
from tests.support.site import Exchange


def chat(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 7}


def only_batch(llm: FakeLlmServer) -> RemoteBatch:
    (batch,) = llm.batches.batches.values()
    return batch


async def collect(
    ledger: Ledger, settings: Settings, count: int, first: int = 0, **metadata: Any
) -> None:
    """Record `count` jobs with this metadata, and add their questions to a batch."""
    async with ModelClient.open(settings, ledger) as client:
        for n in range(first, first + count):
            await ledger.jobs.record(new_job(message(f"job-{n}", **metadata)))
            with pytest.raises(WaitingForBatch):
                await ask_numbered(client, n)


async def ask_numbered(client: ModelClient, n: int) -> bool:
    """Ask the question of this number. Return whether its answer was stored already."""
    requester = Requester(f"job-{n}")
    _, reused = await client.answer(
        chat(f"Question {n}?"), urgency=Urgency(), timeout=20, requester=requester, batch=True
    )
    return reused


def new_batch_runner(ledger: Ledger, settings: Settings) -> BatchRunner:
    """Return the runner of a scheduler that has just become active."""
    return BatchRunner(settings, ledger, Publisher(settings, name="batches"))


async def end_fence(ledger: Ledger) -> None:
    statement = text("UPDATE llm_batches SET fenced_until = 0")
    await ledger.core.database.write(lambda connection: connection.execute(statement))


async def raise_as_killed(*_: Any, **__: Any) -> Any:
    """Raise as if the caller were killed in this call."""
    raise asyncio.CancelledError


def send_empty_list(exchange: Exchange) -> None:
    exchange.send_json(200, {"object": "list", "data": [], "has_more": False})


def refusal(status: int) -> Any:
    """Make the server answer with that status."""
    return lambda exchange: exchange.send_json(status, {"error": {"message": "not so"}})
