"""Collect questions for a server's Batch API, instead of asking them at once.

The job of a collected question waits, which uses up no attempt, and is published again when its
batch has ended. It then finds the answer among the stored ones, or asks live. `batch_runner` sends
the batches and takes their answers in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from switchyard.broker.lanes import BACKFILL
from switchyard.services.common.errors import RetryableError
from switchyard.services.common.files.storage_keys import content_hash
from switchyard.services.common.settings import LlmServer, Settings
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.ledger import Ledger
from switchyard.services.llm.budget_account import BudgetAccount
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.parameters import Parameters
from switchyard.services.llm.records.llm_batches import BatchItem, ItemState
from switchyard.services.llm.records.llm_spend import CallState, LlmCall, Requester

BATCH_TIMEOUT = 26 * 3600.0
"""Seconds after which a batch should have ended, counted from the choice of its questions: the API
promises a day."""
CANCEL_TIMEOUT = 2 * 3600.0
"""Seconds that a server gets to cancel a late batch; then its jobs ask live."""
MAX_BATCH_WAIT = BATCH_TIMEOUT + CANCEL_TIMEOUT
"""Seconds for which a job waits for a batch at most. A job that expires sooner asks live."""
RECHECK_INTERVAL = 3600.0
"""Seconds after which a job that was not woken looks for its answer by itself."""


class WaitingForBatch(RetryableError):
    """The question goes through a Batch API: its job waits for the answer, and this time does not
    count towards its maximum age."""

    def __init__(self, message: str) -> None:
        super().__init__(message, after=RECHECK_INTERVAL, counts=False, ages=False)


def batch_servers(settings: Settings) -> list[LlmServer]:
    """Return the servers whose Batch API is used: only those of the lowest order, as servers of a
    higher order are substitutes."""
    servers = settings.llm_servers
    lowest_order = min((each.order for each in servers), default=0)
    return [each for each in servers if each.batch and each.order == lowest_order]


def may_batch(ctx: JobContext) -> bool:
    """Return whether the job can wait for a batch: in the lane backfill, behind a broker, and not
    too near its end date."""
    settings, expires_at = ctx.settings, ctx.message.metadata.expires_at
    if ctx.lane != BACKFILL.name or ctx.ledger is None or settings.llm_direct:
        return False
    if settings.amqp_url is None or not batch_servers(settings):
        return False
    if expires_at is None:
        return True
    longest_wait = timedelta(seconds=settings.llm_batch_wait + MAX_BATCH_WAIT)
    return expires_at > ctx.ledger.clock.now() + longest_wait


class BatchCollector:
    """Collects questions of one process for the next batch."""

    def __init__(self, ledger: Ledger, server: LlmServer, account: BudgetAccount) -> None:
        self._ledger = ledger
        self._batches = LlmLedger(ledger).batches
        self._server = server
        self._account = account

    @classmethod
    def from_settings(
        cls, settings: Settings, ledger: Ledger | None, account: BudgetAccount
    ) -> BatchCollector | None:
        """Make the collector of the settings' servers; None where no server gets batches."""
        servers = batch_servers(settings)
        return None if ledger is None or not servers else cls(ledger, servers[0], account)

    async def collect(self, answer_key_fields: Mapping[str, Any], requester: Requester) -> None:
        """Collect a question for a batch, and raise WaitingForBatch until the batch has ended.
        Returns if the answer is stored, or the question must be asked live. The fields are those of
        `ModelClient.answer_key_fields`. Raises NoBudget, LedgerError."""
        if requester.job_id is None:
            return
        key = content_hash(answer_key_fields)
        state = await self._batches.record_llm_wait(key, requester.job_id)
        if state in (ItemState.ANSWERED, ItemState.LIVE):
            return
        if state is None:
            chat = answer_key_fields["asked"]
            call = self._account.estimate(self._server, chat, requester, batch=True)
            # The id is made of the question, so that a second try after a crash reserves nothing
            # more.
            today = self._ledger.clock.now().date()
            call = replace(call, id=f"batch-{today}-{key}-{requester.job_id}")
            await self._account.reserve(call, ttl=2 * BATCH_TIMEOUT)
            item = BatchItem(key, ItemState.COLLECTED, self._server.name, answer_key_fields, call)
            body = json.dumps(batch_line_of(item, self._server), ensure_ascii=False)
            await self._batches.collect_llm_question(
                item, requester.job_id, size=len(body.encode())
            )
        raise WaitingForBatch(
            f"the question waits for a batch of {self._server.name}: the answer comes within a day"
        )

    async def finish_wait(self, answer_key_fields: Mapping[str, Any], requester: Requester) -> bool:
        """End this job's wait. Returns whether a batch answered the question, and this job was the
        first to ask it."""
        if requester.job_id is None:
            return False
        return await self._batches.end_llm_wait(content_hash(answer_key_fields), requester.job_id)


def batch_line_of(item: BatchItem, server: LlmServer) -> dict[str, Any]:
    """Return a question as a line of a batch's file."""
    return {
        "custom_id": item.key,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": server.model,
            **Parameters.for_server(server).body(item.question["asked"]),
        },
    }


def free_call_of(item: BatchItem) -> LlmCall:
    """Return the question's call as one that cost nothing; settling it ends the reservation."""
    return replace(item.call, state=CallState.FREE)
