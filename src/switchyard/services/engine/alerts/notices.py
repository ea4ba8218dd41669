"""The job type that notifies a URL of an end: of a job with all that followed from it, or of a
backfill (docs/notices.md).

A notice waits as the `then` of a join does, so the transaction of that end releases it. From then
on it is a job as any other: it is retried, dies without an answer, and can be redriven. Its id
identifies the delivery. If the job ends again after a redrive, another notice is sent.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from switchyard.services.common.errors import PermanentError
from switchyard.services.engine.access.signing import HEADER, signature
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.limits import Limit
from switchyard.services.engine.jobs.local_fields import LocalOnly
from switchyard.services.engine.jobs.outcomes import Done, Outcome, Snooze
from switchyard.services.engine.jobs.registry import job
from switchyard.services.engine.records.bulk import STOPPED, BulkState
from switchyard.services.engine.records.joins import JoinedJob
from switchyard.services.engine.records.states import FINISHED, State

if TYPE_CHECKING:  # the job types are imported without a database
    from switchyard.services.common.files.safe_http import SsrfGuard
    from switchyard.services.common.settings import Settings
    from switchyard.services.engine.ledger import Ledger
    from switchyard.services.engine.records.results import JobRecord, JobSummary

SEND_TIMEOUT = 10.0
"""Seconds that a receiver may take to answer."""
MAX_ATTEMPTS = 12
"""Attempts at most; with the pauses between them, half an hour."""
MAX_SHOWN = 20
"""Failed jobs that one notice lists, at most."""
MAX_TEXT = 500
"""Characters of an error's text, at most."""
MAX_CONCURRENT = 2
"""Concurrent notices to one receiver: one that never answers leaves slots to all others."""
SLOT_RETRY_INTERVAL = 5.0
"""Seconds until a notice tries again at a busy address, which may have many names: each of them
counts as another receiver."""
LOOKUP_TIMEOUT = 2.0
"""Seconds to resolve a name: the receiver may control the name server, too, and let it stall."""
RECHECK_INTERVAL = 15.0
"""Seconds between checks whether a pipeline has ended that was started before the notice."""


def _receiver(notice: Any) -> str:
    """Return the receiver's key for the limit: the last two labels of its name, since an owner can
    have any number of names below these."""
    try:
        host = (urlsplit(notice.url).hostname or "").rstrip(".")
    except ValueError:  # an invalid URL: the job is refused when it runs
        return ""
    labels = host.split(".")
    return ".".join(labels[-2:]) if labels[-1].isalpha() else host


RECEIVERS = Limit("notice_receivers", concurrency=MAX_CONCURRENT, key=_receiver)


class Notice(BaseModel):
    """Payload of `send_notice`. Who may set the URL is checked where the job is published."""

    model_config = ConfigDict(extra="forbid")

    url: Annotated[str, LocalOnly("give notify_url where the job is published"), Field()]
    job_id: str | None = None
    backfill_id: str | None = None
    errors: Annotated[bool, LocalOnly("it is decided by who asks")] = True
    """Whether the notice lists the errors of failed jobs."""

    @model_validator(mode="after")
    def _check_one_given(self) -> Self:
        if (self.job_id is None) == (self.backfill_id is None):
            raise ValueError("give either job_id or backfill_id")
        return self


@job(
    "send_notice",
    worker="link",
    lanes=("maintenance",),
    timeout=60,
    max_attempts=MAX_ATTEMPTS,
    limits=[RECEIVERS],
)
async def send_notice(payload: Notice, ctx: JobContext) -> Outcome:
    """Notify a URL that a job or a backfill has ended."""
    from switchyard.services.common.files.address_limiter import AddressLimiter
    from switchyard.services.common.files.webhook_sender import post

    ledger = ctx.ledger
    if ledger is None:
        raise PermanentError("it needs the ledger")
    secret = ctx.settings.notify_secret
    if secret is None:
        raise PermanentError("set JOBS_NOTIFY_SECRET for this worker, then redrive this job")
    event = await _find_event(payload, ctx, ledger)
    if isinstance(event, Snooze):
        return event
    if event is None:
        return Done({"told": False, "why": "it is gone, or goes on: then its next end is told"})
    content = {
        "delivery": ctx.message.job_id,
        "sent_at": ledger.clock.now().isoformat(timespec="seconds"),
        **event,
    }
    body = json.dumps(content, ensure_ascii=False).encode()
    headers = {
        "Content-Type": "application/json",
        "User-Agent": ctx.settings.user_agent,
        HEADER: signature(body, secret.get_secret_value()),
    }
    guard, address = await _resolve_receiver(payload.url, _guard(ctx.settings))
    limiter = AddressLimiter(MAX_CONCURRENT)
    if ctx.shared is not None:
        limiter = await ctx.shared.get(AddressLimiter, lambda: AddressLimiter.make(MAX_CONCURRENT))
    with limiter.hold(address) as has_slot:
        if not has_slot:
            return Snooze(
                SLOT_RETRY_INTERVAL, f"{MAX_CONCURRENT} notices are on their way to {address}"
            )
        status = await post(payload.url, body, headers=headers, timeout=SEND_TIMEOUT, guard=guard)
    return Done({"told": True, "status": status, "state": event["state"]})


async def _find_event(
    payload: Notice, ctx: JobContext, ledger: Ledger
) -> Mapping[str, Any] | Snooze | None:
    """Return the end to notify of, as the notice's content; None if there is none now; Snooze while
    a pipeline goes on that was started before the notice."""
    if payload.backfill_id is not None:
        return await _backfill_event(payload.backfill_id, ledger)
    first = await ledger.job_reads.get(payload.job_id or "")
    if first is None:
        return None
    # True after a redrive of that job, too.
    has_waited_for_it = ctx.message.metadata.parent_id == first.id
    join = await ledger.joins.join(first.join_id) if has_waited_for_it and first.join_id else None
    if join is not None:
        if join.open:
            return None
        dead_jobs, _ = await ledger.joins.joined_jobs(join.id, state=State.DEAD, limit=MAX_SHOWN)
        counts = {"succeeded": join.succeeded, "dead": join.dead, "cancelled": join.cancelled}
        return _job_event(first, counts, [_dead_job(each.job_id, each) for each in dead_jobs])
    # The pipeline was started by an earlier request; this one wants to be notified as well.
    jobs = await ledger.job_reads.pipeline(first.id)
    if any(each.state not in FINISHED for each in jobs):
        return Snooze(RECHECK_INTERVAL, "it has not ended")
    states = [each.state for each in jobs]
    counts = {state.value: states.count(state) for state in sorted(FINISHED)}
    dead = [each for each in jobs if each.state is State.DEAD][:MAX_SHOWN]
    examples = [_dead_job(each.id, each) for each in dead]
    return _job_event(first, counts, examples if payload.errors else [])


def _job_event(
    first: JobRecord, counts: Mapping[str, int], dead: list[dict[str, Any]]
) -> Mapping[str, Any]:
    document_id = (first.result or {}).get("document_id")
    return {
        "event": "job.ended",
        "state": _state_of(first, counts),
        "job_id": first.id,
        "job_type": first.job_type,
        "document_id": document_id if isinstance(document_id, str) else None,
        "jobs": dict(counts),
        "dead": dead,
    }


def _state_of(first: JobRecord, counts: Mapping[str, int]) -> str:
    """Return how a job with all that followed from it has ended, as docs/notices.md names it."""
    if first.state is State.DEAD and first.reason == "expired":
        return "expired"
    if counts["dead"]:
        return "dead"
    return "cancelled" if counts["cancelled"] else "completed"


def _dead_job(job_id: str, job: JoinedJob | JobSummary) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "job_type": job.job_type,
        "reason": job.reason,
        "error_type": job.error_type,
        "error_message": None if job.error_message is None else job.error_message[:MAX_TEXT],
    }


async def _backfill_event(backfill_id: str, ledger: Ledger) -> Mapping[str, Any] | None:
    operation = await ledger.bulk.get_bulk(backfill_id)
    if operation is None or BulkState(operation.state) not in STOPPED:
        return None
    own, followers = await ledger.bulk_jobs.count_bulk_jobs(backfill_id)
    total = {state: own.get(state, 0) + followers.get(state, 0) for state in sorted(FINISHED)}
    return {
        "event": "backfill.ended",
        "state": operation.state,
        "backfill_id": backfill_id,
        "title": operation.title[:MAX_TEXT],
        "note": None if operation.note is None else operation.note[:MAX_TEXT],
        "jobs": {state.value: number for state, number in total.items()},
    }


async def _resolve_receiver(url: str, guard: SsrfGuard) -> tuple[SsrfGuard, str]:
    """Resolve the URL's host, check the address, and return a guard that resolves to it alone, and
    the address. Raises FetchRefused, FetchFailed."""
    from switchyard.services.common.files.safe_http import FetchFailed, parse_url

    target = parse_url(url)
    host = target.raw_host.decode()
    port = target.port or (443 if target.scheme == "https" else 80)
    try:
        async with asyncio.timeout(LOOKUP_TIMEOUT):
            address = await guard.address_of(host, port)
    except TimeoutError as error:
        raise FetchFailed(f"{host} was not resolved within {LOOKUP_TIMEOUT:g} s") from error

    async def resolve_to_checked(host: str, port: int) -> list[str]:
        return [address]

    return replace(guard, resolve=resolve_to_checked), address


def _guard(settings: Settings) -> SsrfGuard:
    from switchyard.services.common.files.safe_http import SsrfGuard, host_and_port

    return SsrfGuard(
        trusted=frozenset(host_and_port(f"http://{each}") for each in settings.notify_hosts)
    )
