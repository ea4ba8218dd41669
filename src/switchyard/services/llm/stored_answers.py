"""Store answers that were paid for, so that the same question is not paid for again.

The key is a hash of everything the answer depends on: server and model, the messages, the
parameters. An equal question gets the stored answer, whichever job or document asks. Equal
questions at the same moment are one call, in one process and in several: the process with the claim
in the ledger asks, the others wait for its answer.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from switchyard.broker.task_supervisor import TaskSupervisor
from switchyard.services.common.durations import DAY
from switchyard.services.common.files.errors import DiskFull, NotStored, StorageUnavailable
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_keys import content_hash
from switchyard.services.common.instance_ids import new_instance_id
from switchyard.services.common.settings import Settings
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.ledger.leases import renewing
from switchyard.services.engine.records.errors import LedgerError
from switchyard.services.engine.records.retention import Removal
from switchyard.services.engine.scheduler.small_steps import FIRST_STEP, SmallSteps
from switchyard.services.llm.completion_reader import Completion
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.llm_errors import LlmSaturated
from switchyard.services.llm.records.llm_servers import (
    AnswerClaim,
    AnswerClaimRequest,
    AnswersExamined,
    CacheHit,
    LeaseAcquired,
    UnrecordedAnswers,
)
from switchyard.services.llm.thought_filter import without_thoughts

if TYPE_CHECKING:
    from switchyard.services.llm.ledger.llm_answers import LlmAnswerRepository

CLAIM_TTL = 15.0
"""Seconds after which the claim of a process that has died ends, so that another process may
ask."""
MIN_POLL_INTERVAL, MAX_POLL_INTERVAL = 0.05, 0.5
"""First and longest seconds between polls for an answer that another process asks for."""
MAX_UNWRITTEN = 1_000
"""Answers that a process holds in memory while the file storage is unavailable."""
MIB = 1024 * 1024
_FILE_KEY = re.compile(r"llm/([^/]+)\.json")


class StoredAnswers:
    """The stored answers, as one process uses them. Without a ledger, answers that another process
    asks for are not waited for."""

    def __init__(self, storage: Storage, ledger: Ledger | None, *, max_age: float) -> None:
        self._storage = storage
        self._ledger = ledger
        self._repository = None if ledger is None else LlmLedger(ledger).answers
        self._max_age = max_age
        self._holder = new_instance_id()
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        """By key, the lock of a question under way in this process, and the number of its
        callers."""
        self._unwritten: dict[str, tuple[Completion, bytes]] = {}
        """By key, answers that the storage did not take, and the contents of their files."""
        self._unrecorded: dict[str, tuple[Completion, asyncio.Future[None]]] = {}
        """By key, stored answers whose record is about to be committed."""
        self._log = structlog.get_logger("llm")
        self._retries: TaskSupervisor | None = None

    @classmethod
    def from_settings(cls, settings: Settings, ledger: Ledger | None) -> StoredAnswers:
        max_age = settings.llm_answers_days * DAY
        return cls(Storage(settings.files_url), ledger, max_age=max_age)

    async def close(self) -> None:
        """Stop writing. An answer that is not in the storage yet is lost, and paid for again."""
        if self._retries is not None:
            await self._retries.close()

    async def get(
        self,
        question: Mapping[str, Any],
        ask: Callable[[float], Awaitable[Completion]],
        *,
        timeout: float,
        fresh: bool = False,
        record_soon: bool = False,
        claim: Callable[[AnswerClaimRequest], Awaitable[AnswerClaim | None]] | None = None,
    ) -> tuple[Completion, bool]:
        """Return the answer, and whether it was stored already. `ask` gets the question's answer
        within the seconds that it is given. `claim` may claim the answer in one transaction with
        what `ask` needs; it returns None if it did not.

        With `fresh`, ask again even if an answer is stored, and store the new one. With
        `record_soon`, the answer's record is committed with the ledger's next write. Raises what
        `ask` raises, LlmSaturated if another process asks the same for longer than `timeout`
        seconds, and LedgerError.
        """
        key = content_hash(question)
        deadline = time.monotonic() + timeout
        if fresh:
            answer = await ask(timeout)
            return await self._store_or_hold(key, question, answer, record_soon), False
        async with self._exclusive(key):
            held_answer = self._unwritten.get(key) or self._unrecorded.get(key)
            if held_answer is not None:
                return held_answer[0], True
            seconds_left = deadline - time.monotonic()
            stored_answer = await self._find_or_claim(key, seconds_left, claim)
            if stored_answer is not None:
                return stored_answer, True
            async with self._hold_claim(key):
                answer = await ask(max(0.1, deadline - time.monotonic()))
                return await self._store_or_hold(key, question, answer, record_soon), False

    async def store(self, question: Mapping[str, Any], answer: Completion) -> None:
        """Store an answer that a batch gave. Raises StorageError."""
        key = content_hash(question)
        await self._write(key, self._encode(question, answer))

    async def forget(self, question: Mapping[str, Any]) -> None:
        """Delete the stored answer. Raises LedgerError, StorageError."""
        key = content_hash(question)
        self._unwritten.pop(key, None)
        if key in self._unrecorded:
            await asyncio.wait([self._unrecorded[key][1]])
        if self._repository is not None:
            await self._repository.forget_llm_answer(key)
        await self._storage.delete_async(_file_key(key))

    @asynccontextmanager
    async def _exclusive(self, key: str) -> AsyncIterator[None]:
        """Let one question of this key through at a time in this process."""
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks.pop(key)
            if users > 1:
                self._locks[key] = lock, users - 1

    async def _find_or_claim(
        self,
        key: str,
        timeout: float,
        claim_first: Callable[[AnswerClaimRequest], Awaitable[AnswerClaim | None]] | None,
    ) -> Completion | None:
        """Return the stored answer; wait for it if another process is asking. Returns None if this
        process has the claim, and must ask."""
        deadline = time.monotonic() + timeout
        if self._repository is None:
            return await self._read_stored(key)
        request = AnswerClaimRequest(key, self._holder, CLAIM_TTL, self._max_age)
        claim = None if claim_first is None else await claim_first(request)
        pause, is_file_lost = MIN_POLL_INTERVAL, False
        while True:
            if claim is None:
                claim = await self._repository.claim_llm_answer(request, is_file_lost=is_file_lost)
            if isinstance(claim, CacheHit):
                answer = await self._read_stored(key)
                if answer is not None:
                    return answer
                is_file_lost, claim = True, None  # somebody has deleted the file
                continue
            if isinstance(claim, LeaseAcquired):
                # The last asker may have died after storing the answer and before recording it.
                answer = None if is_file_lost else await self._read_stored(key)
                stored_file = (
                    None if answer is None else await self._storage.stat_async(_file_key(key))
                )
                if stored_file is not None:
                    await self._repository.record_llm_answer(key, stored_file.size)
                return None if stored_file is None else answer
            if time.monotonic() + pause > deadline:
                raise LlmSaturated(
                    "another process is already sending this request to the model", after=5.0
                )
            await asyncio.sleep(pause * random.uniform(0.7, 1.3))
            pause, claim = min(pause * 1.5, MAX_POLL_INTERVAL), None

    @asynccontextmanager
    async def _hold_claim(self, key: str) -> AsyncIterator[None]:
        """Hold the claim, and release it if there is no answer."""
        repository = self._repository
        if repository is None:
            yield
            return
        renew = partial(repository.renew_answer_claim, key, self._holder, CLAIM_TTL)
        try:
            async with renewing("claim of a question", CLAIM_TTL, renew):
                yield
        except BaseException:
            try:
                await asyncio.shield(repository.release_answer_claim(key, self._holder))
            except LedgerError as error:  # the claim runs out by itself
                self._log.warning("claim not released", error=str(error))
            raise

    async def _store_or_hold(
        self, key: str, question: Mapping[str, Any], answer: Completion, record_soon: bool
    ) -> Completion:
        """Store an answer; hold it in memory until the storage takes it."""
        encoded = self._encode(question, answer)
        self._unwritten.pop(key, None)  # an older answer
        try:
            if record_soon:
                await self._storage.put_async(_file_key(key), encoded)
                self._record_soon(key, answer, len(encoded))
            else:
                await self._write(key, encoded)
        except (StorageUnavailable, DiskFull) as error:
            if len(self._unwritten) >= MAX_UNWRITTEN:
                raise
            self._log.warning("answer not stored; it is tried again", error=str(error))
            self._unwritten[key] = answer, encoded
            if self._retries is None:
                self._retries = TaskSupervisor(self._log)
                self._retries.start("write answers", self._retry_writes)
        return answer

    def _record_soon(self, key: str, answer: Completion, size: int) -> None:
        """Record a stored answer with the ledger's next write; its caller does not wait for
        that."""
        if self._repository is None:
            return
        record_future = self._repository.record_llm_answer_soon(key, size)
        self._unrecorded[key] = answer, record_future

        def forget(ended_future: asyncio.Future[None]) -> None:
            unrecorded = self._unrecorded.get(key)
            if unrecorded is not None and unrecorded[1] is ended_future:
                del self._unrecorded[key]

        record_future.add_done_callback(forget)

    def _encode(self, question: Mapping[str, Any], answer: Completion) -> bytes:
        body = {"made_at": self._now(), "answer": asdict(answer), "servers": question["servers"]}
        return json.dumps(body, ensure_ascii=False).encode()

    async def _write(self, key: str, encoded: bytes) -> None:
        await self._storage.put_async(_file_key(key), encoded)
        if self._repository is not None:
            try:
                await self._repository.record_llm_answer(key, len(encoded))
            except LedgerError as error:
                # The answer is stored, and is found when the question is asked again.
                self._log.warning("answer not recorded", error=str(error))

    async def _retry_writes(self) -> None:
        """Write the answers that the storage did not take, again and again. Hold their claims
        meanwhile, so that other processes wait for them and do not ask."""
        while True:
            await asyncio.sleep(CLAIM_TTL / 3)
            try:
                for key in tuple(self._unwritten):
                    if self._repository is not None:
                        await self._repository.renew_answer_claim(key, self._holder, CLAIM_TTL)
                async with asyncio.timeout(CLAIM_TTL / 3):
                    for key, unwritten in tuple(self._unwritten.items()):
                        await self._write(key, unwritten[1])
                        if self._unwritten.get(key) is unwritten:
                            del self._unwritten[key]
            except (LedgerError, StorageUnavailable, DiskFull, TimeoutError) as error:
                self._log.warning("answers not stored yet", error=str(error) or "time-out")

    def _now(self) -> float:
        return time.time() if self._ledger is None else self._ledger.clock.time()

    async def _read_stored(self, key: str) -> Completion | None:
        """Return the answer in the storage, if it is not too old."""
        try:
            body: Any = json.loads(await self._storage.get_async(_file_key(key)))
            if body["made_at"] <= self._now() - self._max_age:
                return None
            answer = Completion(**body["answer"])
            if answer.body is not None:
                return answer
            # Earlier versions stored reasoning as part of answers, and streams that had no end.
            text = without_thoughts(answer.text)
            return replace(answer, text=text) if text and answer.finish_reason != "" else None
        except NotStored:
            return None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # The file was changed by hand, or is of another version: a new answer replaces it.
            self._log.warning(
                "stored answer unreadable; the request is repeated",
                key=key,
                error=str(error),
            )
            return None


async def drop_old_answers(settings: Settings, ledger: Ledger) -> int:
    """Delete, in small steps, answers that are too old, or too many, by the settings. Returns how
    many. Raises LedgerError, StorageError."""
    storage, repository = Storage(settings.files_url), LlmLedger(ledger).answers
    examine_steps = SmallSteps.yielding_to_hot_jobs(ledger)
    remove_steps = SmallSteps.yielding_to_hot_jobs(ledger)
    deleted, examined = 0, None
    while examined is None or examined.last is not None:
        examined = await examine_steps.run_step(
            partial(
                _examine,
                repository,
                examined,
                max_age=settings.llm_answers_days * DAY,
                max_bytes=settings.llm_answers_mb * MIB,
            )
        )
        superfluous = list(examined.superfluous.items())
        while superfluous:
            deleted += await _drop_some(storage, repository, remove_steps, superfluous)
    await remove_steps.remove_all(lambda limit: repository.drop_dead_claims(limit=limit))
    return deleted


async def drop_unrecorded_answers(settings: Settings, ledger: Ledger) -> int:
    """Delete files of answers that are a day old and have no record in the ledger: their writers
    died before recording them, and nobody has asked again. Returns how many. Raises LedgerError,
    StorageError."""
    storage, repository = Storage(settings.files_url), LlmLedger(ledger).answers
    steps = SmallSteps.yielding_to_hot_jobs(ledger)
    # The earlier of two clocks: one that is wrong makes no file old.
    modified_before = min(time.time(), ledger.clock.time()) - DAY
    deleted = 0
    async for keys in _old_files(storage, modified_before):
        unrecorded = await steps.run_step(partial(_find_unrecorded, repository, keys))
        for key in unrecorded.keys:
            stored_file = await storage.stat_async(_file_key(key))
            if stored_file is not None and stored_file.modified.timestamp() < modified_before:
                # If it is recorded just now, a process that misses the file asks anew.
                await storage.delete_async(stored_file.key)
                deleted += 1
    return deleted


async def _find_unrecorded(
    repository: LlmAnswerRepository, keys: Sequence[str], _limit: int
) -> UnrecordedAnswers:
    return await repository.unrecorded_answers(keys)


async def _old_files(storage: Storage, modified_before: float) -> AsyncIterator[list[str]]:
    """Yield the keys of files that were written before `modified_before`, FIRST_STEP at a time."""
    keys: list[str] = []
    async for stored_file in storage.list_async("llm"):
        match = _FILE_KEY.fullmatch(stored_file.key)
        if match is not None and stored_file.modified.timestamp() < modified_before:
            keys.append(match[1])
        if len(keys) == FIRST_STEP:
            yield keys
            keys = []
    if keys:
        yield keys


async def _examine(
    repository: LlmAnswerRepository,
    after: AnswersExamined | None,
    limit: int,
    *,
    max_age: float,
    max_bytes: int,
) -> AnswersExamined:
    return await repository.examine_llm_answers(
        max_age=max_age, max_bytes=max_bytes, after=after, limit=limit
    )


async def _drop_some(
    storage: Storage,
    repository: LlmAnswerRepository,
    steps: SmallSteps,
    superfluous: list[tuple[str, float]],
) -> int:
    """Delete as many answers as one transaction takes, with their files, and take them from the
    list `superfluous`. Returns how many."""
    keys: list[str] = []

    async def drop(limit: int) -> Removal:
        batch = dict(superfluous[:limit])
        del superfluous[:limit]
        keys[:], removal = await repository.drop_llm_answers(batch)
        return removal

    await steps.run_step(drop)
    for key in keys:
        await storage.delete_async(_file_key(key))
    return len(keys)


def _file_key(key: str) -> str:
    return f"llm/{key}.json"
