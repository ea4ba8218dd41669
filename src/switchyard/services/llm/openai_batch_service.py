"""Batches of the OpenAI-compatible API: made by clients, and run as backfills.

A batch is valid or not as a whole. A valid batch becomes a backfill of the source `openai_batch`,
so it yields to hot jobs, shares its queue fairly, keeps within budgets, and goes through a
provider's Batch API where one is used. The active scheduler takes each batch from step to step. A
step can be repeated; a crash repeats at most one.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Literal

import structlog

from switchyard.broker.lanes import BACKFILL
from switchyard.services.common.errors import ConflictError, InvalidInput, NotFoundError
from switchyard.services.common.files.errors import NotStored, StorageError
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.settings import Settings
from switchyard.services.engine.backfill.counts import Counts
from switchyard.services.engine.backfill.spec import KIND, BackfillSpec, item_job_id
from switchyard.services.engine.backfill.starting import Backfills
from switchyard.services.engine.bulk.control import new_bulk_id
from switchyard.services.engine.jobs.registry import InvalidPayload, Registry, UnknownJobType
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.records.bulk import BulkOperation, BulkState
from switchyard.services.engine.records.states import State
from switchyard.services.engine.records.system import KeyLimits
from switchyard.services.engine.scheduler.small_steps import SmallSteps
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.openai_batch_input import (
    BatchInputSource,
    BatchLine,
    InvalidBatchLine,
    check_input,
    parse_line,
    raw_lines,
)
from switchyard.services.llm.openai_form import BATCH_URLS, ENDPOINTS, REFUSALS, answer_of
from switchyard.services.llm.records.openai_batches import (
    OPEN_STATES,
    OpenAiBatch,
    OpenAiBatchState,
    OpenAiFile,
    storage_key_of,
)

MAX_OPEN_PER_KEY = 50
"""Batches of one API key that have not ended."""
MAX_WINDOW_HOURS = 7 * 24
RESULT_BATCH_SIZE = 20
"""Jobs whose results are in memory at once: each may have megabytes."""
MAX_OUTPUT_BYTES = 10 * 1024**3
UNFINISHED_UPLOAD_TTL = 24 * 3600.0
"""Seconds after which an unfinished upload is deleted."""
DELETE_BATCH_SIZE = 100
"""Files that are deleted for each query."""

_State = OpenAiBatchState


class InvalidBatch(InvalidInput):
    """The batch can't be made as requested; the text says what to change."""


class TooManyBatches(ConflictError):
    """The API key has MAX_OPEN_PER_KEY open batches already."""


class UnknownOpenAiBatch(NotFoundError):
    """There is no such batch, or it is another key's."""


class UnknownOpenAiFile(NotFoundError):
    """There is no such file, or it is another key's."""


class FileInUse(ConflictError):
    """The file is read by a batch that has not ended."""


class BatchEnded(ConflictError):
    """The batch has ended, or is about to."""


class OpenAiBatchService:
    """Files and batches of clients. All methods raise LedgerError."""

    def __init__(self, settings: Settings, ledger: Ledger, registry: Registry) -> None:
        self._settings = settings
        self._ledger = ledger
        self._registry = registry
        self._storage = Storage(settings.files_url)
        self._repository = LlmLedger(ledger).openai
        self._log = structlog.get_logger("llm")

    # --- files --------------------------------------------------------------------------------

    def new_file(self, owner: str, filename: str, purpose: str) -> OpenAiFile:
        """Make the record of a file that will be written; it is not stored yet."""
        now, retention = self._ledger.clock.time(), self._settings.keep_openai_files
        return OpenAiFile(
            id=f"file-{secrets.token_hex(12)}",
            owner=owner,
            filename=filename[:200] or "file.jsonl",
            purpose=purpose,
            created_at=now,
            expires_at=None if retention is None else now + retention,
            size=None,
        )

    async def store(
        self, file: OpenAiFile, parts: AsyncIterator[bytes], *, max_bytes: int
    ) -> OpenAiFile:
        """Write a file; its owner sees it once `publish_file` is called. Raises FileTooLarge,
        StorageError, and what `parts` raises: then nothing is kept."""
        await self._repository.add_file(file)
        try:
            received = await self._storage.put_stream_async(
                file.storage_key, parts, max_bytes=max_bytes
            )
        except BaseException:
            await self._repository.drop_file(file.id)
            raise
        return replace(file, size=received.size)

    async def publish_file(self, file: OpenAiFile) -> None:
        """Make a stored file visible to its owner."""
        assert file.size is not None
        await self._repository.complete_file(file)

    async def files(
        self, owner: str, *, purpose: str | None, newest_first: bool, after: str | None, limit: int
    ) -> list[OpenAiFile]:
        """List files of an owner; with `after`, those that follow the file of this id."""
        return await self._repository.list_files(
            owner, purpose=purpose, newest_first=newest_first, after=after, limit=limit
        )

    def content(self, file: OpenAiFile) -> AsyncIterator[bytes]:
        """Stream the content of a file."""
        return self._storage.stream_async(file.storage_key)

    async def file(self, file_id: str, owner: str) -> OpenAiFile:
        """Return a file. Raises UnknownOpenAiFile."""
        file = await self._repository.file(file_id, owner)
        if file is None:
            raise UnknownOpenAiFile(f"there is no file {file_id}")
        return file

    async def delete_file(self, file_id: str, owner: str) -> None:
        """Delete a file. Raises UnknownOpenAiFile, FileInUse, StorageError."""
        file = await self.file(file_id, owner)
        if await self._repository.is_read_by_open_batch(file.id):
            raise FileInUse(f"{file_id} is read by a batch: cancel that first, or wait for its end")
        await self.discard(file)

    async def discard(self, file: OpenAiFile) -> None:
        """Delete a file and forget it. Raises StorageError."""
        await self._storage.delete_async(file.storage_key)
        await self._repository.drop_file(file.id)

    # --- batches ------------------------------------------------------------------------------

    async def create(
        self,
        owner: str,
        *,
        endpoint: str,
        input_file_id: str,
        completion_window: str,
        metadata: Mapping[str, str] | None,
        source: str,
        idempotency_key: str | None,
    ) -> OpenAiBatch:
        """Record a batch; a scheduler validates and runs it. A second call with the same
        `idempotency_key` returns the first one's batch. Raises InvalidBatch, UnknownOpenAiFile,
        TooManyBatches."""
        hours = window_hours(completion_window)
        if endpoint not in BATCH_URLS:
            raise InvalidBatch(f"endpoint must be one of {', '.join(BATCH_URLS)}")
        batch_id = f"batch_{secrets.token_hex(16)}"
        if idempotency_key is not None:
            digest = hashlib.sha256(f"{owner}/{idempotency_key}".encode()).hexdigest()
            batch_id = f"batch_{digest[:32]}"
            existing = await self._repository.batch(batch_id, owner)
            if existing is not None:
                if (existing.endpoint, existing.input_file_id) != (endpoint, input_file_id):
                    raise InvalidBatch("the Idempotency-Key belongs to another batch")
                return existing
        file = await self.file(input_file_id, owner)
        if file.purpose != "batch":
            raise InvalidBatch(f"{file.id} has the purpose {file.purpose}: a batch needs `batch`")
        if await self._repository.count_open(owner) >= MAX_OPEN_PER_KEY:
            raise TooManyBatches(f"{MAX_OPEN_PER_KEY} batches of this key have not ended")
        now = self._ledger.clock.time()
        batch = OpenAiBatch(
            id=batch_id,
            owner=owner,
            state=_State.VALIDATING,
            created_at=now,
            endpoint=endpoint,
            input_file_id=file.id,
            completion_window=completion_window,
            expires_at=now + hours * 3600,
            operation_id=new_bulk_id(KIND),
            metadata=metadata,
            source=source,
        )
        return await self._repository.add_batch(batch)

    async def batch(self, batch_id: str, owner: str) -> OpenAiBatch:
        """Return a batch with its present counts. Raises UnknownOpenAiBatch."""
        batch = await self._repository.batch(batch_id, owner)
        if batch is None:
            raise UnknownOpenAiBatch(f"there is no batch {batch_id}")
        return await self.with_counts(batch)

    async def batches(self, owner: str, *, after: str | None, limit: int) -> list[OpenAiBatch]:
        """List batches of an owner, newest first; with `after`, those that follow the batch of this
        id."""
        records = await self._repository.list_batches(owner, after=after, limit=limit)
        return [await self.with_counts(each) for each in records]

    async def with_counts(self, batch: OpenAiBatch) -> OpenAiBatch:
        """Return the batch with the present counts of its requests; a batch that has ended is
        returned as it is."""
        if batch.state not in OPEN_STATES or not batch.total:
            return batch
        operation = await self._ledger.bulk.get_bulk(batch.operation_id)
        if operation is None:
            return batch
        job_counts, _ = await self._ledger.bulk_jobs.count_bulk_jobs(batch.operation_id)
        skipped = Counts.from_json(operation.counts).skipped
        failed = job_counts.get(State.DEAD, 0) + job_counts.get(State.CANCELLED, 0) + skipped
        return replace(batch, completed=job_counts.get(State.SUCCEEDED, 0), failed=failed)

    async def cancel(self, batch_id: str, owner: str) -> OpenAiBatch:
        """Cancel a batch: requests that have not begun are not sent to a server any more. Raises
        UnknownOpenAiBatch, and BatchEnded if it has ended."""
        batch = await self.batch(batch_id, owner)
        cancellable = {_State.VALIDATING, _State.IN_PROGRESS}
        moved = await self._repository.move_batch(
            batch.id, _State.CANCELLING, from_states=cancellable
        )
        if moved is None:
            raise UnknownOpenAiBatch(f"there is no batch {batch_id}")
        if moved.state is not _State.CANCELLING:
            raise BatchEnded(f"the batch is {moved.state}: it can't be cancelled any more")
        return await self.with_counts(moved)

    # --- from step to step -------------------------------------------------------------------

    async def turn(self) -> None:
        """Take each open batch a step further. Raises LedgerError."""
        for batch in await self._repository.open_batches():
            try:
                await self._advance(batch)
            except StorageError as error:
                self._log.warning("batch turn failed; it is tried again", error=str(error))

    async def delete_old(self) -> int:
        """Delete expired files, and the records of ended batches that are older than files may be.
        Returns how many files were deleted. Raises LedgerError, StorageError."""
        now, retention = self._ledger.clock.time(), self._settings.keep_openai_files
        deleted_count = 0
        while old_files := await self._repository.old_files(
            now, unwritten_before=now - UNFINISHED_UPLOAD_TTL, limit=DELETE_BATCH_SIZE
        ):
            for file in old_files:
                await self.discard(file)
            deleted_count += len(old_files)
        if retention is not None:
            before = now - retention
            await SmallSteps.yielding_to_hot_jobs(self._ledger).remove_all(
                lambda limit: self._repository.drop_ended_batches(before, limit=limit)
            )
        return deleted_count

    async def _advance(self, batch: OpenAiBatch) -> None:
        if batch.state is _State.VALIDATING:
            await self._validate(batch)
        elif batch.state is _State.FINALIZING:
            await self._write_files_and_close(batch, batch.outcome or _State.COMPLETED)
        else:
            await self._follow_backfill(batch)

    async def _validate(self, batch: OpenAiBatch) -> None:
        try:
            limits = await self._limits_of(batch)
            report = await check_input(self._settings, self._storage, batch, limits)
        except NotStored:
            error = {"code": "file_not_found", "message": "the input file is gone"}
            await self._refuse_input(batch, [error | {"param": None, "line": None}])
            return
        if report.errors:
            await self._refuse_input(batch, report.errors)
            return
        moved = await self._repository.move_batch(
            batch.id,
            _State.IN_PROGRESS,
            from_states={_State.VALIDATING},
            changes={"total": report.total},
        )
        if moved is not None and moved.state is _State.IN_PROGRESS:
            self._log.info("batch started", batch=batch.id, requests=report.total)
            await self._follow_backfill(moved)

    async def _limits_of(self, batch: OpenAiBatch) -> KeyLimits | None:
        key = await self._ledger.api_keys.get_api_key(batch.owner)
        return None if key is None else key.limits

    async def _refuse_input(self, batch: OpenAiBatch, errors: Any) -> None:
        changes = {"errors": tuple(errors)}
        await self._repository.move_batch(
            batch.id, _State.FAILED, from_states={_State.VALIDATING}, changes=changes
        )
        self._log.info("batch invalid", batch=batch.id, errors=len(changes["errors"]))

    async def _follow_backfill(self, batch: OpenAiBatch) -> None:
        """Start the backfill of a batch; end the batch early, or finalize it, when its backfill has
        ended or its own time is over."""
        operation = await self._ledger.bulk.get_bulk(batch.operation_id)
        if batch.state is _State.CANCELLING:
            await self._stop_early(batch, operation, _State.CANCELLED)
        elif operation is None:
            await self._start(batch)
        elif operation.state is BulkState.COMPLETED:
            await self._start_finalizing(batch, _State.COMPLETED)
        elif self._ledger.clock.time() >= batch.expires_at:
            await self._stop_early(batch, operation, _State.EXPIRED)
        elif operation.state is BulkState.CANCELLED:  # by an operator
            await self._stop_early(batch, operation, _State.CANCELLED)
        elif operation.state is BulkState.FAILED:
            error = {"code": "batch_failed", "message": operation.note, "param": None, "line": None}
            await self._stop_early(batch, operation, _State.FAILED, errors=(error,))

    async def _start(self, batch: OpenAiBatch) -> None:
        limits = await self._limits_of(batch)
        max_priority = None if limits is None else limits.max_priority
        spec = BackfillSpec(
            source=BatchInputSource.name,
            priority=None if max_priority is None else min(max_priority, BACKFILL.default_priority),
            options={"batch_id": batch.id},
            job_type=ENDPOINTS[batch.endpoint].job_type,
        )
        await self._ledger.bulk.create_bulk(
            batch.operation_id,
            kind=KIND,
            title=f"OpenAI batch {batch.id}",
            spec=spec.model_dump(mode="json"),
            created_by=batch.source,
            counts={"total": batch.total},
        )

    async def _stop_early(
        self,
        batch: OpenAiBatch,
        operation: BulkOperation | None,
        outcome: OpenAiBatchState,
        errors: tuple[Mapping[str, Any], ...] = (),
    ) -> None:
        """End a batch early: cancel its backfill, and once its last running job has ended, in a
        later turn, finalize the batch."""
        if operation is not None:
            if operation.state is not BulkState.COMPLETED:
                backfills = Backfills.from_settings(self._settings, self._registry, self._ledger)
                await backfills.cancel(batch.operation_id, jobs=True)
            if await self._ledger.bulk_jobs.count_open_bulk_jobs(operation.id, at_most=1):
                return
        if operation is None and outcome is _State.CANCELLED:
            states = {_State.CANCELLING}
            await self._repository.move_batch(batch.id, outcome, from_states=states)
            return
        await self._start_finalizing(batch, outcome, errors)

    async def _start_finalizing(
        self,
        batch: OpenAiBatch,
        outcome: OpenAiBatchState,
        errors: tuple[Mapping[str, Any], ...] = (),
    ) -> None:
        """Record the outcome of a batch whose requests have all ended, and write its files."""
        if (
            batch.state is _State.CANCELLING
        ):  # as at OpenAI, it stays so until its files are written
            await self._write_files_and_close(batch, _State.CANCELLED)
            return
        moved = await self._repository.move_batch(
            batch.id,
            _State.FINALIZING,
            from_states={_State.IN_PROGRESS},
            changes={"outcome": outcome, "errors": errors},
        )
        if moved is not None and moved.state is _State.FINALIZING:
            await self._write_files_and_close(moved, outcome)

    async def _write_files_and_close(self, batch: OpenAiBatch, outcome: OpenAiBatchState) -> None:
        """Write the files of a batch whose requests have all ended, and end the batch. Raises
        StorageError."""
        counts = {"output": 0, "error": 0}
        file_ids = {
            kind: await self._write_file(batch, outcome, kind, counts)
            for kind in ("output", "error")
        }
        await self._repository.move_batch(
            batch.id,
            outcome,
            from_states={batch.state},
            changes={
                "completed": counts["output"],
                "failed": counts["error"],
                "output_file_id": file_ids["output"],
                "error_file_id": file_ids["error"],
            },
        )
        self._log.info("batch ended", batch=batch.id, state=outcome, **counts)

    async def _write_file(
        self,
        batch: OpenAiBatch,
        outcome: OpenAiBatchState,
        kind: Literal["output", "error"],
        counts: dict[str, int],
    ) -> str | None:
        """Write one of a batch's files, under the same id each time, and count its lines in
        `counts`. Returns the id; None if the file would be empty."""
        file_id = f"file-{hashlib.sha256(f'{batch.id}/{kind}'.encode()).hexdigest()[:24]}"
        name = f"{batch.id}_{kind}.jsonl"
        file = replace(self.new_file(batch.owner, name, "batch_output"), id=file_id)

        async def lines() -> AsyncIterator[bytes]:
            async for is_answer, line in self._output_lines(batch, outcome):
                if is_answer is (kind == "output"):
                    counts[kind] += 1
                    yield json.dumps(line, ensure_ascii=True).encode() + b"\n"

        stored = await self.store(file, lines(), max_bytes=MAX_OUTPUT_BYTES)
        if not counts[kind]:
            await self.discard(stored)
            return None
        await self.publish_file(stored)
        return file_id

    async def _output_lines(
        self, batch: OpenAiBatch, outcome: OpenAiBatchState
    ) -> AsyncIterator[tuple[bool, dict[str, Any]]]:
        """Yield, for each request in order, whether it has an answer, and its line. Yields nothing
        if somebody has deleted the input file in the storage."""
        ids = await self._ledger.system.job_ids()
        async for group in self._read_line_groups(batch):
            job_ids = {
                line.custom_id: item_job_id(ids, batch.operation_id, line.custom_id)
                for line in group
            }
            ends = await self._repository.job_ends(list(job_ids.values()))
            for line in group:
                job_id = job_ids[line.custom_id]
                yield self._output_line(batch, outcome, line, job_id, ends.get(job_id))

    async def _read_line_groups(self, batch: OpenAiBatch) -> AsyncIterator[list[BatchLine]]:
        group: list[BatchLine] = []
        number = 0
        lines = raw_lines(self._storage, storage_key_of(batch.input_file_id))
        async with aclosing(lines) as open_lines:  # type: ignore[type-var]
            async for raw_line, next_offset in open_lines:
                number += 1
                if raw_line is not None and not raw_line.strip():
                    continue
                try:
                    group.append(parse_line(raw_line, number, next_offset, batch.endpoint))
                except InvalidBatchLine as error:  # the input was valid when it was checked
                    self._log.error("batch input changed", batch=batch.id, error=str(error))
                if len(group) == RESULT_BATCH_SIZE:
                    yield group
                    group = []
        if group:
            yield group

    def _output_line(
        self,
        batch: OpenAiBatch,
        outcome: OpenAiBatchState,
        line: BatchLine,
        job_id: str,
        end: Mapping[str, Any] | None,
    ) -> tuple[bool, dict[str, Any]]:
        # Imported here, as it loads everything that runs jobs.
        from switchyard.services.llm.llm_queue import LlmResult, LlmStatus

        ids: dict[str, Any] = {"id": f"batch_req_{job_id}", "custom_id": line.custom_id}
        if end is not None and end["state"] == State.SUCCEEDED:
            result = LlmResult(job_id, LlmStatus.COMPLETED, end["result"] or {})
            body = answer_of(batch.endpoint, line.body, result)
            response = {"status_code": 200, "request_id": job_id, "body": body}
            return True, {**ids, "response": response, "error": None}
        if end is not None and end["state"] == State.DEAD and end["reason"] != "expired":
            code = REFUSALS.get(end["error_type"])
            status = 502 if code is None else 400
            text = end["error_message"] or "the request failed"
            return False, {**ids, **_failure(job_id, status, code or "model_failed", text)}
        problem = None if end is not None else self._reason_against_job(batch, line)
        if problem is not None:
            return False, {**ids, **_failure(job_id, 400, "invalid", problem)}
        code, text = _UNASKED_REASONS.get(outcome, _UNASKED_REASONS[_State.COMPLETED])
        if end is not None and end["state"] == State.DEAD:
            code, text = _UNASKED_REASONS[_State.EXPIRED]
        return False, {**ids, "response": None, "error": {"code": code, "message": text}}

    def _reason_against_job(self, batch: OpenAiBatch, line: BatchLine) -> str | None:
        """Return why a request can't become a job; None if it can."""
        endpoint = ENDPOINTS[batch.endpoint]
        try:
            job_type = self._registry.get_publishable(endpoint.job_type)
            job_type.validate_remote(endpoint.payload(line.body))
        except (InvalidPayload, UnknownJobType) as error:
            return str(error)
        return None


_UNASKED_REASONS: Mapping[OpenAiBatchState, tuple[str, str]] = {
    _State.EXPIRED: (
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
    _State.CANCELLED: (
        "batch_cancelled",
        "This request was not executed because the batch was cancelled.",
    ),
    _State.FAILED: ("batch_failed", "This request was not executed because the batch failed."),
    _State.COMPLETED: (
        "no_result",
        "There is no result: the job was cancelled or too large, or its record is too old.",
    ),
}
"""Code and message for a request that was not answered, by how its batch ended."""


def _failure(job_id: str, status: int, code: str, message: str) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": None, "code": code}
    response = {"status_code": status, "request_id": job_id, "body": {"error": error}}
    return {"response": response, "error": None}


def window_hours(window: str) -> int:
    """Return the hours of a completion window such as `24h`. Raises InvalidBatch."""
    number, unit = window[:-1], window[-1:]
    if unit == "h" and number.isascii() and number.isdecimal() and len(number) < 4:
        hours = int(number)
        if 1 <= hours <= MAX_WINDOW_HOURS:
            return hours
    raise InvalidBatch(f"completion_window must be 1h to {MAX_WINDOW_HOURS}h, such as 24h")
