"""Send collected questions through Batch APIs, and store the batches' answers one by one.

Nothing is lost and nothing sent twice, wherever the process is killed: the questions of a batch are
chosen in the ledger before the server hears of it; our id is in the batch's metadata, and before a
batch is created, the server is searched for it, as an earlier process may have created it. One
process sends a batch at a time: it has reserved that in the ledger (the fence), for longer than all
its requests take. Each step can be repeated: the answer is stored, its cost recorded under an id of
its own, and the question marked as answered; then its jobs are woken, again and again until they
have read the answer. Questions that no batch answers are asked live: each job then makes a call of
its own.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import structlog

from switchyard.broker.publish.publisher import Publisher
from switchyard.services.common.files.errors import StorageError
from switchyard.services.common.settings import LlmServer, Settings
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.publishing.outbox import publish_recorded
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.retention import Removal
from switchyard.services.engine.records.states import State
from switchyard.services.engine.scheduler.small_steps import SmallSteps
from switchyard.services.llm.batch_api import ENDED_STATUSES, BatchApi, RemoteBatch
from switchyard.services.llm.batch_collector import (
    BATCH_TIMEOUT,
    CANCEL_TIMEOUT,
    MAX_BATCH_WAIT,
    batch_line_of,
    batch_servers,
    free_call_of,
)
from switchyard.services.llm.budget_account import BudgetAccount
from switchyard.services.llm.completion_reader import CompletionReader
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.llm_errors import (
    InvalidLlmResponse,
    LlmRefused,
    LlmTimeout,
    LlmUnavailable,
)
from switchyard.services.llm.records.llm_batches import BatchItem, BatchState, ItemState, LlmBatch
from switchyard.services.llm.records.llm_spend import CallState, LlmCall
from switchyard.services.llm.stored_answers import StoredAnswers

TURN_INTERVAL = 5.0
"""Seconds between turns."""
BATCH_POLL_INTERVAL = 60.0
"""Seconds between requests for the state of a batch that the server works on."""
FENCE_TTL = 600.0
"""Seconds for which one process alone may send a batch; SENDING_TIMEOUT ends before. The fence
stays after an error: the server may still be creating the batch."""
SENDING_TIMEOUT = FENCE_TTL - 120.0
MAX_SENDING_AGE = 6 * 3600.0
"""Age of a batch, in seconds, up to which its sending is tried again; then its jobs ask live."""
MAX_FILE_BYTES = 48 * 1024 * 1024
"""Size of a batch's file of questions."""
_MAX_LINES_PER_QUESTION = 2
"""Lines of a file of answers that are read for each question of the batch. Questions whose answers
come later in the file are asked live."""
CLEANUP_INTERVAL = 600.0
RETENTION = 7 * 24 * 3600.0
"""Seconds after which batches that are done, and questions that no job asks for, are deleted."""

MODEL_SERVER_ERRORS = (LlmUnavailable, InvalidLlmResponse, LlmRefused)


class BatchRunner:
    """Sends batches, and stores their answers; a duty of the active scheduler."""

    def __init__(self, settings: Settings, ledger: Ledger, publisher: Publisher) -> None:
        self._settings = settings
        self._ledger = ledger
        self._batches = LlmLedger(ledger).batches
        self._publisher = publisher
        self._batch_servers = {each.name: each for each in batch_servers(settings)}
        self._servers = {each.name: each for each in settings.llm_servers}
        self._account = BudgetAccount.from_settings(settings, ledger)
        self._answers = StoredAnswers.from_settings(settings, ledger)
        self._steps = SmallSteps.yielding_to_hot_jobs(ledger)
        self._checked_at: dict[str, float] = {}
        self._log = structlog.get_logger("llm")

    async def run(self) -> None:
        """Send and finish batches until cancelled; earlier batches also when no server gets batches
        any more."""
        cleaned_at = float("-inf")
        while True:
            try:
                await self.turn()
                if time.monotonic() - cleaned_at > CLEANUP_INTERVAL:
                    await self.delete_old()
                    cleaned_at = time.monotonic()
            except (LedgerError, StorageError) as error:
                self._log.warning("batch turn failed; it is tried again", error=str(error))
            await asyncio.sleep(TURN_INTERVAL if self._batch_servers else BATCH_POLL_INTERVAL)

    async def delete_old(self) -> None:
        """Delete old questions that no job waits for, and old batches that are done. Raises
        LedgerError."""
        calls: list[LlmCall] = []

        async def delete_some(limit: int) -> Removal:
            calls[:], removal = await self._batches.delete_old_llm_batches(
                max_age=RETENTION, limit=limit
            )
            return removal

        is_complete = False
        while not is_complete:
            is_complete = (await self._steps.run_step(delete_some)).is_complete
            for call in calls:
                await self._account.settle(replace(call, state=CallState.FREE))

    async def turn(self) -> None:
        """Open batches, advance each, and wake the jobs of batches that have ended. A batch that
        can't be advanced holds up no other. Raises LedgerError."""
        await self._release_unfit_questions()
        for server in self._batch_servers.values():
            await self._batches.open_llm_batch(
                uuid4().hex,
                server.name,
                max_wait=self._settings.llm_batch_wait,
                max_questions=self._settings.llm_batch_size,
                max_bytes=MAX_FILE_BYTES,
            )
        for batch in await self._batches.llm_batches():
            try:
                await self._advance(batch)
            except (*MODEL_SERVER_ERRORS, StorageError) as error:
                self._log.warning(
                    "batch not advanced; it is tried again",
                    batch=batch.id,
                    error=str(error),
                )
                await self._batches.update_llm_batch_state(
                    batch, state=batch.state, note=str(error)
                )
        await self._wake_jobs()

    async def _release_unfit_questions(self) -> None:
        """Release collected questions whose provider gets no batches any more, or whose job expires
        soon: their jobs ask live. The reservation of a question's cost is ended first: after a
        crash it is ended again, which changes nothing."""
        while items := await self._batches.unfit_llm_questions(
            list(self._batch_servers), expires_within=MAX_BATCH_WAIT
        ):
            for item in items:
                await self._account.settle(free_call_of(item))
                await self._batches.release_llm_question(item.key)
            self._log.info("collected questions released", questions=len(items))

    async def _advance(self, batch: LlmBatch) -> None:
        server = self._servers.get(batch.provider)
        age = self._ledger.clock.time() - batch.created_at
        if server is None:
            await self._end_batch(batch, f"JOBS_LLM_PROVIDERS has no {batch.provider} any more")
        elif batch.state is BatchState.SENDING:
            if await self._batches.fence_llm_batch(batch.id, FENCE_TTL):
                try:
                    async with asyncio.timeout(SENDING_TIMEOUT):
                        is_enabled = server.name in self._batch_servers
                        may_create = is_enabled and age <= MAX_SENDING_AGE
                        await self._send(
                            batch,
                            server,
                            may_create=may_create,
                            is_past_timeout=age > BATCH_TIMEOUT,
                        )
                except TimeoutError as error:
                    raise LlmTimeout("the batch could not be sent in time") from error
        elif self._is_check_due(batch):
            async with BatchApi.connect(server) as api:
                await self._check_remote(batch, api, server, is_past_timeout=age > BATCH_TIMEOUT)

    def _is_check_due(self, batch: LlmBatch) -> bool:
        """Return whether a sent batch is to be checked now, and remember that it was."""
        now = time.monotonic()
        if now - self._checked_at.get(batch.id, float("-inf")) < BATCH_POLL_INTERVAL:
            return False
        self._checked_at[batch.id] = now
        return True

    # --- sending ------------------------------------------------------------------------------

    async def _send(
        self, batch: LlmBatch, server: LlmServer, *, may_create: bool, is_past_timeout: bool
    ) -> None:
        """Send a batch, unless the server has it already; the caller has the fence. With
        `is_past_timeout`, the server would have ended the batch by now if it had got it."""
        try:
            async with BatchApi.connect(server) as api:
                remote = await api.find_created(batch.id) or await self._create(
                    batch, api, server, may_create
                )
        except LlmRefused as error:
            if error.is_server_specific and not error.is_missing and may_create:
                raise  # about the key or a right, which somebody may correct
            await self._end_batch(batch, str(error))
            return
        except (LlmUnavailable, InvalidLlmResponse) as error:
            if not is_past_timeout:
                raise  # the server may have the batch all the same, and charge for it
            await self._end_batch(batch, f"it could not be sent: {error}")
            return
        if remote is None:
            return
        is_updated = await self._batches.update_llm_batch_state(
            batch, state=BatchState.SENT, remote_id=remote.id, note=remote.status
        )
        if not is_updated:
            await self._cancel_if_duplicate(batch, server, remote.id)
            return
        self._log.info("batch sent", batch=batch.id, remote=remote.id, questions=batch.questions)

    async def _create(
        self, batch: LlmBatch, api: BatchApi, server: LlmServer, may_create: bool
    ) -> RemoteBatch | None:
        """Create a batch at the server; end it, and return None, if it has no questions any more or
        `may_create` is false."""
        await self._delete_uploads(api, batch)
        items = await self._batches.open_llm_questions(batch) if may_create else {}
        if not items:
            unsent = f"it could not be sent: {batch.note}"
            await self._end_batch(batch, "there is nothing left in it" if may_create else unsent)
            return None
        try:
            return await api.create(
                batch.id, await api.upload(batch.id, self._file_content(items, server))
            )
        except LlmRefused:
            await self._delete_uploads(api, batch)
            raise

    async def _delete_uploads(self, api: BatchApi, batch: LlmBatch) -> None:
        """Delete files that were uploaded for the batch before its sender was killed or got no
        answer: they may be cut off, or made with other settings."""
        try:
            file_ids = await api.uploads(batch.id)
        except MODEL_SERVER_ERRORS as error:
            self._log.warning("uploads not listed", batch=batch.id, error=str(error))
            return
        await self._delete_files(api, file_ids)

    async def _cancel_if_duplicate(
        self, batch: LlmBatch, server: LlmServer, remote_id: str
    ) -> None:
        """Cancel the batch that this process has created if another process, while this one was
        frozen, created it as well."""
        remote_ids = {each.id: each.remote_id for each in await self._batches.llm_batches()}
        self._log.warning("batch sent by another process", batch=batch.id, remote=remote_id)
        if remote_ids.get(batch.id) != remote_id:
            async with BatchApi.connect(server) as api:
                await self._cancel(api, remote_id)

    def _file_content(self, items: dict[str, BatchItem], server: LlmServer) -> bytes:
        lines = (batch_line_of(each, server) for each in items.values())
        return b"".join(json.dumps(each, ensure_ascii=False).encode() + b"\n" for each in lines)

    # --- storing answers ----------------------------------------------------------------------

    async def _check_remote(
        self, batch: LlmBatch, api: BatchApi, server: LlmServer, *, is_past_timeout: bool
    ) -> None:
        """Ask for the state of a sent batch, and store its answers when it has ended."""
        assert batch.remote_id is not None
        try:
            remote = await api.get(batch.remote_id)
        except MODEL_SERVER_ERRORS as error:
            if not is_past_timeout:
                raise
            await self._end_batch(batch, f"its state is unknown after its time-out: {error}")
            return
        if remote.status not in ENDED_STATUSES:
            if self._ledger.clock.time() - batch.created_at > BATCH_TIMEOUT + CANCEL_TIMEOUT:
                await self._end_batch(batch, f"{remote.status}, long after its time-out")
                return
            if is_past_timeout:
                await self._cancel(api, batch.remote_id)
            await self._batches.update_llm_batch_state(
                batch, state=BatchState.SENT, note=remote.status
            )
            return
        items = await self._batches.open_llm_questions(batch)
        files = remote.files if items else ()  # without open items, the files may be gone
        for file_id in files:
            try:
                lines = await api.lines(
                    file_id, max_lines=_MAX_LINES_PER_QUESTION * batch.questions
                )
            except (InvalidLlmResponse, LlmRefused) as error:
                if not is_past_timeout:
                    raise
                self._log.error("batch answers unreadable", batch=batch.id, error=str(error))
                continue
            await self._store_answers(batch, server, lines, items)
        await self._release_open_items(batch)
        # Before the batch is done: if this process is killed here, the next one repeats it.
        await self._delete_files(api, filter(None, [*remote.files, remote.input_file]))
        await self._end_batch(batch, _end_note(remote))

    async def _store_answers(
        self,
        batch: LlmBatch,
        server: LlmServer,
        lines: Iterable[Any],
        items: dict[str, BatchItem],
    ) -> None:
        for line in lines:
            key = line.get("custom_id") if isinstance(line, dict) else None
            item = items.pop(key, None) if isinstance(key, str) else None
            if item is not None:  # else the question is unknown, or was answered before
                await self._store_answer(batch, server, item, line.get("response"))
            else:
                await asyncio.sleep(0)  # reading lines takes time: let other tasks run in between

    async def _store_answer(
        self, batch: LlmBatch, server: LlmServer, item: BatchItem, response: Any
    ) -> None:
        """Store the answer to a question; without an answer, the jobs ask live, and get the
        error."""
        body = response.get("body") if isinstance(response, dict) else None
        if not isinstance(response, dict) or response.get("status_code") != 200:
            await self._account.settle(free_call_of(item))
            await self._batches.finish_llm_question(item.key, batch, ItemState.LIVE)
            return
        try:
            keep_all = bool(item.question.get("keeps_all"))
            reader = CompletionReader(server.model, keep_all=keep_all)
            answer = reader.read_whole(body)
        except MODEL_SERVER_ERRORS:
            await self._account.settle(replace(item.call, state=CallState.UNSURE))
            await self._batches.finish_llm_question(item.key, batch, ItemState.LIVE)
            return
        await self._answers.store(item.question, answer)
        await self._account.settle(self._account.with_actual_cost(item.call, answer))
        await self._batches.finish_llm_question(item.key, batch, ItemState.ANSWERED)

    async def _end_batch(self, batch: LlmBatch, note: str) -> None:
        """End a batch: questions that it has not answered are asked live."""
        await self._release_open_items(batch)
        is_updated = await self._batches.update_llm_batch_state(
            batch, state=BatchState.DONE, note=note
        )
        self._checked_at.pop(batch.id, None)
        if is_updated:
            self._log.info("batch done", batch=batch.id, note=note)

    async def _release_open_items(self, batch: LlmBatch) -> None:
        for item in (items := await self._batches.open_llm_questions(batch)).values():
            await self._account.settle(free_call_of(item))
            await self._batches.finish_llm_question(item.key, batch, ItemState.LIVE)
        if items:
            self._log.info("batch questions released", batch=batch.id, questions=len(items))

    async def _cancel(self, api: BatchApi, remote_id: str) -> None:
        try:
            await api.cancel(remote_id)
        except MODEL_SERVER_ERRORS as error:
            self._log.warning("batch not cancelled", remote=remote_id, error=str(error))

    async def _delete_files(self, api: BatchApi, files: Iterable[str]) -> None:
        """Delete files at the server; a failure is only logged."""
        for file_id in files:
            try:
                await api.delete(file_id)
            except MODEL_SERVER_ERRORS as error:
                self._log.warning("batch file not deleted", file=file_id, error=str(error))

    async def _wake_jobs(self) -> None:
        while job_ids := await self._batches.claim_jobs_to_wake():
            records = [await self._ledger.job_reads.get(each) for each in job_ids]
            waiting = [each for each in records if each and each.state is State.RETRYING]
            await publish_recorded(self._publisher, self._ledger, waiting)


def _end_note(remote: RemoteBatch) -> str:
    return remote.status if remote.error is None else f"{remote.status}: {remote.error}"
