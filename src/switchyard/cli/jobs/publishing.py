"""What `jobctl publish` does for one job, and for each of many: its options, and what it says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from switchyard.cli.base.common import (
    open_ledger,
)
from switchyard.cli.base.errors import CommandFailed
from switchyard.cli.base.output import echo, print_json

if TYPE_CHECKING:
    from switchyard.services.jobs.registry import Registry
    from switchyard.services.ledger import Ledger
    from switchyard.services.publishing.preparing import JobRequest
    from switchyard.services.publishing.publisher import JobPublisher, Published
    from switchyard.services.settings import Settings

SOURCE = "jobctl"


@dataclass(frozen=True, slots=True)
class Options:
    """What holds for every job of one call."""

    routing_key: str
    priority: int | None
    max_attempts: int | None
    delay: float
    expires_in: float | None
    key: str | None
    wait: bool
    timeout: float | None
    as_json: bool

    def request(
        self, payload: dict[str, Any], now: datetime, line: int | None = None
    ) -> JobRequest:
        """The request for one payload. Each line of an input has a key of its own; `now` is the
        ledger's time, from which it expires."""
        from switchyard.services.publishing.preparing import JobRequest

        key = self.key if self.key is None or line is None else f"{self.key}/{line}"
        return JobRequest(
            routing_key=self.routing_key,
            payload=payload,
            priority=self.priority,
            max_attempts=self.max_attempts,
            source=SOURCE,
            delay=self.delay,
            expires_at=None if self.expires_in is None else now + timedelta(0, self.expires_in),
            idempotency_key=key,
        )


@asynccontextmanager
async def job_publisher(
    settings: Settings, registry: Registry
) -> AsyncIterator[tuple[JobPublisher, Ledger]]:
    """A publisher with its ledger, closed at the end."""
    from switchyard.broker.publish.publisher import Publisher
    from switchyard.services.identity.broker import guard
    from switchyard.services.publishing.publisher import JobPublisher

    async with (
        open_ledger(settings) as ledger,
        Publisher(settings, name="jobctl", guard=guard(settings, ledger)) as publisher,
    ):
        yield JobPublisher(registry, ledger, publisher), ledger


async def report_one(options: Options, ledger: Ledger, published: Published) -> None:
    """Print what became of a single job. Raises CommandFailed when it was waited for and died."""
    from switchyard.cli.base.waiting import wait_for_end
    from switchyard.services.records import State

    shown: dict[str, Any] = {
        "job_id": published.job_id,
        "routing_key": published.routing_key,
        "state": published.state,
        "duplicate": published.duplicate,
    }
    if not options.wait:
        if options.as_json:
            print_json(shown)
        else:
            echo(published.job_id)
        return
    await wait_for_end(ledger, [published.job_id], timeout=options.timeout)
    record = await ledger.get(published.job_id)
    if record is None:
        raise CommandFailed(f"the ledger has lost job {published.job_id}")
    if options.as_json:
        failed = {"error_type": record.error_type, "error_message": record.error_message}
        print_json(
            shown
            | {"state": record.state, "result": record.result, "reason": record.reason}
            | failed
        )
    elif record.state is State.SUCCEEDED:
        print_json(record.result or {})
    if record.state is not State.SUCCEEDED:
        why = f": {record.error_message}" if record.error_message else ""
        reason = f" ({record.reason})" if record.reason else ""
        raise CommandFailed(
            f"job {record.id} is {record.state}{reason}{why}; see `jobctl jobs show {record.id}`"
        )
