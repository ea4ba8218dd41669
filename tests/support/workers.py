"""Workers' troubles: a ledger with faults, jobs that others hold, signs of life."""

import time
from functools import partial
from typing import Any

from pydantic import SecretStr

from switchyard.broker.message import JobMessage
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.errors import LedgerError, LedgerUnavailable
from switchyard.services.engine.records.requests import ClaimRequest
from switchyard.services.engine.records.results import Claimed
from tests.support.eventually import eventually
from tests.support.system import System
from tests.support.tcp_proxy import TcpProxy

LEVELS = (0.1, 0.2)
PATIENT = 0.4
"""Seconds of silence after which a worker counts as dead in these tests."""


def by(proxy: TcpProxy, system: System) -> dict[str, Any]:
    """Return settings of a worker whose way to the broker leads through the proxy."""
    return {"amqp_url": SecretStr(proxy.url(system.broker.amqp_url))}


class FaultyLedger:
    """A ledger that is away for the calls that a test names."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.away: set[str] = set()
        """Calls that do not reach it; `*` for all."""
        self.error: LedgerError = LedgerUnavailable("away")
        """What these calls raise."""
        self.loses_answer_of: set[str] = set()
        """Calls that reach it, but whose answer is lost, once each."""
        self.clock = ledger.clock

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._ledger, name)
        return partial(self.call, value) if callable(value) else _FaultyRepository(self, value)

    async def call(self, method: Any, *arguments: Any, **options: Any) -> Any:
        """Call a method of a repository, unless it is away."""
        name = method.__name__
        if {name, "*"} & self.away:
            raise self.error
        answer = await method(*arguments, **options)
        if name in self.loses_answer_of:
            self.loses_answer_of.remove(name)
            raise LedgerUnavailable("its answer was lost")
        return answer


class _FaultyRepository:
    """One repository of such a ledger."""

    def __init__(self, ledger: FaultyLedger, repository: Any) -> None:
        self._ledger = ledger
        self._repository = repository

    def __getattr__(self, name: str) -> Any:
        return partial(self._ledger.call, getattr(self._repository, name))


async def held_by(
    system: System, message: JobMessage, worker_id: str, takeover_from: str | None = None
) -> str:
    """Let another worker, which is only in the ledger, claim the job; the claim's id."""
    await system.ledger.workers.register_worker(
        worker_id, kinds=["llm"], lanes=["hot"], host="elsewhere", pid=1, concurrency=1
    )
    request = ClaimRequest(
        message=message,
        lane="hot",
        worker="llm",
        routing_key=f"hot.{message.job_type}",
        worker_id=worker_id,
        claim_id=f"{worker_id}/1",
        now=time.time(),
        takeover_from=takeover_from,
    )
    assert isinstance(await system.ledger.jobs.claim(request), Claimed)
    return request.claim_id


async def another_beat(system: System, worker_id: str) -> None:
    """Wait until the worker has given a further sign of life."""
    before = await system.ledger.workers.worker_beat(worker_id)

    async def seen() -> bool:
        return await system.ledger.workers.worker_beat(worker_id) != before

    await eventually(seen, what="a sign of life")
