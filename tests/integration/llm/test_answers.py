"""Stored answers: equal questions are paid for once, asked at the same time or later."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks.llm_batch import Machine
from benchmarks.llm_server import serving
from switchyard.services.common.durations import DAY
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_keys import content_hash
from switchyard.services.common.settings import Settings
from switchyard.services.engine.ledger import Ledger
from switchyard.services.llm import stored_answers as stored_answers_module
from switchyard.services.llm.completion_reader import Completion
from switchyard.services.llm.ledger import LlmLedger
from switchyard.services.llm.llm_errors import LlmSaturated, LlmUnavailable
from switchyard.services.llm.records.llm_servers import (
    AnswerClaimRequest,
    AnswersExamined,
    CacheHit,
    LeaseAcquired,
    LeaseHeld,
)
from switchyard.services.llm.stored_answers import (
    StoredAnswers,
    drop_old_answers,
    drop_unrecorded_answers,
)
from tests.support.eventually import eventually
from tests.support.llm_process import asking
from tests.support.object_stores import CONTAINER, s3_server
from tests.support.small_steps import remove_in_steps
from tests.support.tcp_proxy import TcpProxy

QUESTION = {"servers": [["http://there/v1", "m"]], "asked": {"messages": ["hello"]}}


class CountingServer:
    """Answer like a server, with another text each time, and count the calls."""

    def __init__(self, *, may_answer: asyncio.Event | None = None) -> None:
        self.times = 0
        self._may_answer = may_answer

    async def __call__(self, timeout: float) -> Completion:
        self.times += 1
        number = self.times
        if self._may_answer is not None:
            await self._may_answer.wait()
        return Completion(f"answer {number}", "m", "stop", {})


@pytest.fixture
def open_answers(ledger: Ledger, tmp_path: Path) -> Callable[..., StoredAnswers]:
    """Open the stored answers as one more process does."""

    def open_(max_age: float = 3600.0) -> StoredAnswers:
        return StoredAnswers(Storage(tmp_path.as_uri()), ledger, max_age=max_age)

    return open_


async def get(
    answers: StoredAnswers, ask: Callable[[float], Awaitable[Completion]], **options: Any
) -> str:
    answer, reused = await answers.get(QUESTION, ask, **{"timeout": 20.0, **options})
    return f"{answer.text}{' again' if reused else ''}"


async def test_a_question_is_paid_for_once(open_answers: Callable[..., StoredAnswers]) -> None:
    ask = CountingServer()
    assert await get(open_answers(), ask) == "answer 1"
    assert await get(open_answers(), ask) == "answer 1 again"
    assert await get(open_answers(), ask, fresh=True) == "answer 2"
    assert await get(open_answers(), ask) == "answer 2 again"
    assert await get(open_answers(max_age=0), ask) == "answer 3"


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (Completion("Hmm.</think>Water.", "m", "stop", {}), "Water. again"),
        (Completion("<think>Hmm.", "m", "stop", {}), "answer 1"),
        (Completion("Tides rise and", "m", "", {}), "answer 1"),
    ],
    ids=["with reasoning", "reasoning alone", "a stream without an end"],
)
async def test_a_wrong_answer_that_an_earlier_version_stored_is_not_reused(
    open_answers: Callable[..., StoredAnswers], stored: Completion, expected: str
) -> None:
    await open_answers().store(QUESTION, stored)
    assert await get(open_answers(), CountingServer()) == expected


async def test_equal_questions_at_once_are_one_call(
    open_answers: Callable[..., StoredAnswers],
) -> None:
    may_answer = asyncio.Event()
    ask = CountingServer(may_answer=may_answer)
    first, second = open_answers(), open_answers()
    waiting = [asyncio.create_task(get(each, ask)) for each in [first, second] * 10]
    await eventually(lambda: ask.times)
    may_answer.set()
    texts = await asyncio.gather(*waiting)
    assert sorted(texts) == ["answer 1"] + ["answer 1 again"] * 19
    assert ask.times == 1
    assert not first._locks
    assert not second._locks


async def test_a_question_that_failed_is_asked_by_the_next_caller(
    open_answers: Callable[..., StoredAnswers],
) -> None:
    ask = CountingServer()

    async def fail(timeout: float) -> Completion:
        raise LlmUnavailable("no luck")

    with pytest.raises(LlmUnavailable):
        await get(open_answers(), fail)
    assert await get(open_answers(), ask) == "answer 1"


async def test_a_cancelled_question_is_asked_by_the_next_caller(
    open_answers: Callable[..., StoredAnswers],
) -> None:
    blocked = CountingServer(may_answer=asyncio.Event())
    first = asyncio.create_task(get(open_answers(), blocked))
    await eventually(lambda: blocked.times)
    second = asyncio.create_task(get(open_answers(), ask := CountingServer()))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await second == "answer 1"
    assert ask.times == 1


async def test_the_question_of_a_killed_worker_is_asked_by_another(
    open_answers: Callable[..., StoredAnswers], ledger: Ledger
) -> None:
    key = content_hash(QUESTION)
    claim = await LlmLedger(ledger).answers.claim_llm_answer(
        AnswerClaimRequest(key, "killed", ttl=0.4, max_age=60)
    )
    assert claim == LeaseAcquired()
    assert await get(open_answers(), CountingServer()) == "answer 1"


async def test_an_answer_without_a_record_is_reused(
    open_answers: Callable[..., StoredAnswers], ledger: Ledger
) -> None:
    """Its writer was killed between the file and the record."""
    answers = open_answers()
    await answers.store(QUESTION, Completion("paid", "m", "stop", {}))
    records = LlmLedger(ledger).answers
    page = await records.examine_llm_answers(max_age=0, max_bytes=0, after=None, limit=9)
    assert (await records.drop_llm_answers(page.superfluous))[0] == [content_hash(QUESTION)]
    assert await get(answers, CountingServer()) == "paid again"


async def test_an_answer_is_held_in_memory_until_the_storage_takes_it(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes wait for it meanwhile."""
    monkeypatch.setattr(stored_answers_module, "CLAIM_TTL", 3.0)
    with s3_server() as environment:
        host, _, port = environment["AWS_ENDPOINT_URL"].removeprefix("http://").partition(":")
        async with TcpProxy(host, int(port)) as proxy:
            environment["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{proxy.port}"
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
            ask = CountingServer()

            async def ask_as_it_goes_away(timeout: float) -> Completion:
                proxy.refuse()
                proxy.cut()
                return await ask(timeout)

            url = f"s3://{CONTAINER}/files"
            first_answers, second_answers = [
                StoredAnswers(Storage(url), ledger, max_age=3600.0) for _ in range(2)
            ]
            assert await get(first_answers, ask_as_it_goes_away) == "answer 1"
            assert await get(first_answers, ask) == "answer 1 again"
            waiting = asyncio.create_task(get(second_answers, ask, timeout=60.0))
            await proxy.accept()
            assert await waiting == "answer 1 again"
            await eventually(lambda: not first_answers._unwritten)
            await first_answers.close()
            assert ask.times == 1


async def test_waiting_too_long_for_the_answer_of_another_process_is_no_attempt(
    open_answers: Callable[..., StoredAnswers], ledger: Ledger
) -> None:
    await LlmLedger(ledger).answers.claim_llm_answer(
        AnswerClaimRequest(content_hash(QUESTION), "slow", ttl=60, max_age=60)
    )
    with pytest.raises(LlmSaturated, match="already sending this request") as raised:
        await get(open_answers(), CountingServer(), timeout=0.3)
    assert not raised.value.counts


async def test_a_question_whose_file_is_deleted_or_damaged_is_asked_again(
    open_answers: Callable[..., StoredAnswers], tmp_path: Path
) -> None:
    ask = CountingServer()
    await get(open_answers(), ask)
    (file,) = (tmp_path / "llm").iterdir()
    file.write_text("{")
    assert await get(open_answers(), ask) == "answer 2"
    file.unlink()
    assert await get(open_answers(), ask) == "answer 3"
    assert await get(open_answers(), ask) == "answer 3 again"


async def test_reusing_an_answer_without_a_record_records_it(
    open_answers: Callable[..., StoredAnswers], ledger: Ledger, tmp_path: Path
) -> None:
    await StoredAnswers(Storage(tmp_path.as_uri()), None, max_age=60).store(
        QUESTION, Completion("paid for", "m", "stop", {})
    )
    assert await get(open_answers(), CountingServer()) == "paid for again"
    records = LlmLedger(ledger).answers
    page = await records.examine_llm_answers(max_age=0, max_bytes=0, after=None, limit=9)
    assert list(page.superfluous) == [content_hash(QUESTION)]


async def test_files_of_answers_without_a_record_are_deleted_after_a_day(
    ledger: Ledger, tmp_path: Path
) -> None:
    settings = Settings(storage_url=tmp_path.as_uri())
    storage, records = Storage(tmp_path.as_uri()), LlmLedger(ledger).answers
    for number in range(250):
        await storage.put_async(f"llm/left-{number}.json", b"x")
    for name in ("recorded", "asked", "young"):
        await storage.put_async(f"llm/{name}.json", b"x")
    await records.record_llm_answer("recorded", 1)
    await records.claim_llm_answer(AnswerClaimRequest("asked", "somebody", ttl=60, max_age=60))
    for path in (tmp_path / "llm").iterdir():
        if path.stem != "young":
            os.utime(path, (time.time() - 2 * DAY,) * 2)
    assert await drop_unrecorded_answers(settings, ledger) == 250
    remaining = sorted(path.stem for path in (tmp_path / "llm").iterdir())
    assert remaining == ["asked", "recorded", "young"]


async def test_one_process_gets_the_claim(ledger: Ledger) -> None:
    async def claim(holder: str) -> object:
        return await LlmLedger(ledger).answers.claim_llm_answer(
            AnswerClaimRequest("k", holder, ttl=60, max_age=60)
        )

    claims = await asyncio.gather(*(claim(f"worker {n}") for n in range(8)))
    assert claims.count(LeaseAcquired()) == 1
    assert claims.count(LeaseHeld()) == 7
    await LlmLedger(ledger).answers.record_llm_answer("k", 10)
    assert isinstance(await claim("late"), CacheHit)


async def test_old_and_unused_answers_are_deleted(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_answers_module, "MIB", 1)
    settings = Settings(storage_url=tmp_path.as_uri(), llm_answers_days=1, llm_answers_mb=250)
    storage = Storage(tmp_path.as_uri())
    for number in range(5):
        await storage.put_async(f"llm/k{number}.json", b"x" * 100)
        await LlmLedger(ledger).answers.record_llm_answer(f"k{number}", 100)
    assert await drop_old_answers(settings, ledger) == 3
    remaining = sorted(path.name for path in (tmp_path / "llm").iterdir())
    assert remaining == ["k3.json", "k4.json"], "the latest ones"
    assert await drop_old_answers(settings, ledger) == 0
    store_nothing = settings.model_copy(update={"llm_answers_days": 0})
    assert await drop_old_answers(store_nothing, ledger) == 2
    assert await drop_old_answers(store_nothing, ledger) == 0


async def test_old_answers_are_deleted_in_steps_unless_they_are_used_meanwhile(
    ledger: Ledger,
) -> None:
    records = LlmLedger(ledger).answers
    for number in range(7):
        await records.record_llm_answer(f"k{number}", 100)
    pages: list[AnswersExamined] = []
    while not pages or pages[-1].last is not None:
        after = pages[-1] if pages else None
        pages.append(
            await records.examine_llm_answers(max_age=60, max_bytes=350, after=after, limit=2)
        )
    assert [sorted(each.superfluous) for each in pages] == [[], ["k3"], ["k1", "k2"], ["k0"]]
    await records.record_llm_answer("k1", 100)  # used again after it was examined
    await records.claim_llm_answer(AnswerClaimRequest("k2", "somebody", ttl=60, max_age=0))
    keys = [(await records.drop_llm_answers(each.superfluous))[0] for each in pages]
    assert keys == [[], ["k3"], [], ["k0"]]


async def test_claims_of_dead_processes_are_deleted_in_steps(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = LlmLedger(ledger).answers
    for number in range(5):
        await records.claim_llm_answer(AnswerClaimRequest(f"k{number}", "dead", ttl=0, max_age=60))
    await records.record_llm_answer("answered", 1)
    assert await remove_in_steps(lambda limit: records.drop_dead_claims(limit=limit)) == Counter()
    monkeypatch.setattr("switchyard.services.llm.ledger.llm_answers.DEAD_CLAIM_AGE", -1.0)
    rows = await remove_in_steps(lambda limit: records.drop_dead_claims(limit=limit))
    assert rows == {"llm_answers": 5}


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.long)])
async def test_equal_questions_over_several_processes_are_one_call(
    ledger: Ledger, database_url: str, tmp_path: Path, processes: int
) -> None:
    """25 equal questions in each process."""
    with serving(Machine(tokens=40, scale=4)) as (url, app):
        environment = {
            "JOBS_LLM_BASE_URL": url,
            "JOBS_DATABASE_URL": database_url,
            "JOBS_DATA_DIR": str(tmp_path),
        }
        same = ["the same"] * 25
        with ExitStack() as started:
            askers = [started.enter_context(asking(environment, same)) for _ in range(processes)]
            for process in askers:
                process.go()
            for process in askers:
                assert await process.answers() == ["word0"] * 25
        assert list(app.counts.by_question.values()) == [1]
