"""Helpers for tests of workers: a ledger with faults, claims of other workers, heartbeats."""

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

RETRY_DELAYS = (0.1, 0.2)
"""Seconds of the retry levels."""
TAKEOVER_AFTER = 0.4
"""Seconds of silence after which a worker counts as dead in these tests."""


def through_proxy(proxy: TcpProxy, system: System) -> dict[str, Any]:
    """Return the settings of a worker that reaches its broker through the proxy."""
    return {"amqp_url": SecretStr(proxy.url(system.broker.amqp_url))}


class FaultyLedger:
    """A ledger that can't be reached by the calls that a test names in `away`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.away: set[str] = set()
        """Names of the calls that fail with `error`; `*` for all."""
        self.error: LedgerError = LedgerUnavailable("away")
        """The error that calls in `away` raise."""
        self.loses_answer_of: set[str] = set()
        """Names of calls that reach the ledger and whose answer is lost, once each."""
        self.clock = ledger.clock

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._ledger, name)
        if callable(attribute):
            return partial(self.call, attribute)
        return _FaultyRepository(self, attribute)

    async def call(self, method: Any, *arguments: Any, **options: Any) -> Any:
        """Call a method of a repository, unless its name is in `away`."""
        name = method.__name__
        if {name, "*"} & self.away:
            raise self.error
        answer = await method(*arguments, **options)
        if name in self.loses_answer_of:
            self.loses_answer_of.remove(name)
            raise LedgerUnavailable("its answer was lost")
        return answer


class _FaultyRepository:
    """A repository of a FaultyLedger."""

    def __init__(self, ledger: FaultyLedger, repository: Any) -> None:
        self._ledger = ledger
        self._repository = repository

    def __getattr__(self, name: str) -> Any:
        return partial(self._ledger.call, getattr(self._repository, name))


async def claim_for(
    system: System, message: JobMessage, worker_id: str, takeover_from: str | None = None
) -> str:
    """Claim the job for another worker that exists only in the ledger; return the claim's id."""
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


async def wait_for_heartbeat(system: System, worker_id: str) -> None:
    """Wait for the worker's next heartbeat."""
    heartbeat_before = await system.ledger.workers.worker_beat(worker_id)

    async def has_come() -> bool:
        return await system.ledger.workers.worker_beat(worker_id) != heartbeat_before

    await eventually(has_come, what="a heartbeat")
