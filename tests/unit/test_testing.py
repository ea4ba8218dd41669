"""`switchyard.testing.run_job` runs a handler in a test as in production, without a broker."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from pydantic import BaseModel

from switchyard.broker.dead.dead_letter_headers import Reason
from switchyard.services.common.errors import PermanentError, RetryableError
from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.outcomes import (
    Discard,
    Done,
    Job,
    Next,
    Outcome,
    Retry,
    Snooze,
)
from switchyard.services.engine.jobs.registry import InvalidPayload, RegistryError, job
from switchyard.services.engine.jobs.retry import Delayed
from switchyard.services.engine.ledger import Ledger
from switchyard.services.engine.publishing.preparing import InvalidJob, job_id_of
from switchyard.services.engine.records.job_ids import PUBLIC_IDS
from switchyard.services.engine.records.joins import JoinedJob
from switchyard.services.engine.records.states import State
from switchyard.testing import run_job, run_job_sync
from tests.support.alone import Text, count_on, count_up_alone, linger, weigh
from tests.support.ledgers import make_ledger
from tests.support.raising import answer_badly, cancel_itself, raise_here, raise_in_thread


@job("shout", worker="llm", lanes=("hot", "backfill"), timeout=0.5, max_attempts=2)
async def shout(payload: Text, ctx: JobContext) -> Outcome:
    match payload.then:
        case "next":
            return Next([Job("shout", {"text": "again"}, lane="backfill")], {"n": 1})
        case "nonsense":
            return Next([Job("shout", {"text": 1})])
        case "secret":
            return Done({"no": object()})
        case "busy":
            raise RetryableError("busy", after=15)
        case "broken":
            raise PermanentError("corrupt")
        case "slow":
            await wait_forever()
        case "retry":
            return Retry("not yet")
        case "snooze":
            return Snooze(10)
        case "discard":
            return Discard("unwanted")
    return Done({"text": payload.text.upper(), "lane": ctx.lane, "attempt": ctx.attempt})


@pytest.mark.parametrize("name", ["KeyboardInterrupt", "panic", "unsayable", "cancelled"])
async def test_anything_that_a_handler_raises_or_returns_is_in_the_result(name: str) -> None:
    for handler in (raise_here, raise_in_thread, answer_badly, cancel_itself):
        run = await run_job(handler, {"name": name})
        assert run.failure is not None
        assert run.state in (State.RETRYING, State.DEAD)


async def wait_forever() -> None:
    await asyncio.Event().wait()


@job("remember", worker="llm", lanes=("hot",))
async def remember(payload: Text, ctx: JobContext) -> Outcome:
    assert ctx.ledger is not None
    assert ctx.settings.amqp_url is None
    assert ctx.settings.data_dir.is_dir()
    (ctx.settings.data_dir / "note").write_text(payload.text)
    return Done(
        {"jobs": len((await ctx.ledger.job_reads.list_jobs()).items), "url": ctx.settings.files_url}
    )


@job("count_up", worker="llm", lanes=("hot",))
async def count_up(payload: Text, ctx: JobContext) -> Outcome:
    return count_on(ctx)


def undeclared(payload: Text, ctx: JobContext) -> Outcome:
    return Done()


async def test_the_result_has_outcome_state_and_published_jobs() -> None:
    run = await run_job(shout, {"text": "Guten Tag"})
    assert run.outcome == Done({"text": "GUTEN TAG", "lane": "hot", "attempt": 1})
    assert (run.state, run.result) == (State.SUCCEEDED, run.outcome.result)
    assert (run.published, run.failure, run.retry_after, run.reason) == ((), None, None, None)


def test_the_sync_variant_returns_the_same() -> None:
    assert run_job_sync(shout, Text(text="hi"), lane="backfill", attempt=2).result == {
        "text": "HI",
        "lane": "backfill",
        "attempt": 2,
    }


async def test_the_sync_variant_in_a_loop_says_to_await_run_job() -> None:
    with pytest.raises(RuntimeError, match="await run_job"):
        run_job_sync(shout, {"text": "hi"})


async def test_the_published_jobs_are_those_of_production() -> None:
    run = await run_job(shout, {"text": "a", "then": "next"}, job_id="one")
    (following,) = run.published
    assert following.routing_key == "backfill.shout"
    assert following.message.payload == {"text": "again"}
    assert following.message.job_id == job_id_of(PUBLIC_IDS, "one", "shout", 0)
    assert following.message.metadata.parent_id == "one"
    assert run.result == {"n": 1}


@pytest.mark.parametrize(
    ("then", "attempt", "state", "reason", "error_type", "retry_after"),
    [
        ("busy", 1, State.RETRYING, None, "RetryableError", 15),
        ("busy", 2, State.DEAD, Reason.EXHAUSTED, "RetryableError", None),
        ("broken", 1, State.DEAD, Reason.PERMANENT, "PermanentError", None),
        ("slow", 1, State.RETRYING, None, "TimeLimitExceeded", 5),
        ("retry", 1, State.RETRYING, None, "Retry", 5),
        ("snooze", 2, State.RETRYING, None, "Snooze", 10),
        ("discard", 1, State.DEAD, Reason.PERMANENT, "Discard", None),
        ("nonsense", 1, State.DEAD, Reason.PERMANENT, "InvalidOutcome", None),
        ("secret", 1, State.DEAD, Reason.PERMANENT, "InvalidOutcome", None),
    ],
)
async def test_failures_are_decided_as_in_production(
    then: str,
    attempt: int,
    state: State,
    reason: str | None,
    error_type: str,
    retry_after: float | None,
) -> None:
    run = await run_job(shout, {"text": "a", "then": then}, attempt=attempt)
    assert (run.state, run.reason, run.retry_after) == (state, reason, retry_after)
    assert run.failure is not None
    assert run.failure.error_type == error_type
    assert run.published == ()


async def test_a_snooze_uses_up_no_attempt() -> None:
    decision = (await run_job(shout, {"text": "a", "then": "snooze"})).decision
    assert isinstance(decision, Delayed)
    assert (decision.attempts, decision.counts) == (0, False)


async def test_an_isolated_handler_runs_in_a_process_with_its_limits() -> None:
    assert (await run_job(weigh, {"text": ""})).result != {"pid": os.getpid()}
    too_large = await run_job(weigh, {"text": "", "then": "big"})
    assert too_large.failure is not None
    assert too_large.failure.error_type == "MemoryError"
    crashed = await run_job(weigh, {"text": "", "then": "exit"}, attempt=2)
    assert crashed.reason == Reason.CRASHED
    slow = await run_job(linger, {"text": ""})
    assert slow.failure is not None
    assert slow.failure.error_type == "TimeLimitExceeded"


@pytest.mark.parametrize("handler", [count_up, count_up_alone])
async def test_progress_and_checkpoint_are_in_the_result(handler: Any) -> None:
    first = await run_job(handler, {"text": ""})
    assert (first.state, first.checkpoint) == (State.RETRYING, 3)
    assert first.progress is not None
    assert (first.progress.fraction, first.progress.note) == (0.3, "3 of 10")
    last = await run_job(handler, {"text": ""}, last_checkpoint=7, attempt=2)
    assert (last.result, last.checkpoint) == ({"began": 7}, 10)
    without_progress = await run_job(shout, {"text": "hi"})
    assert (without_progress.progress, without_progress.checkpoint) == (None, None)


async def test_an_invalid_call_is_refused_as_by_the_publisher() -> None:
    with pytest.raises(InvalidPayload, match="text: Field required"):
        await run_job(shout, {})
    with pytest.raises(InvalidJob, match=r"use hot\.shout or backfill.shout"):
        await run_job(shout, {"text": "a"}, lane="maintenance")
    with pytest.raises(InvalidJob, match="attempt 3 of shout: it has 2"):
        await run_job(shout, {"text": "a"}, attempt=3)
    with pytest.raises(RegistryError, match="undeclared is not a job's handler: mark it with @job"):
        await run_job(undeclared, {"text": "a"})


async def test_a_run_uses_neither_broker_nor_ledger_nor_storage_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JOBS_AMQP_URL", "amqp://production/")
    monkeypatch.setenv("JOBS_DATABASE_URL", "postgresql+asyncpg://production/jobs")
    monkeypatch.setenv("JOBS_STORAGE_URL", "s3://production")
    run = await run_job(remember, {"text": "x"})
    assert run.result is not None
    assert run.result["jobs"] == 0
    assert run.result["url"].startswith("file:///")


async def test_settings_and_a_ledger_can_be_the_tests_own(sqlite_url: str) -> None:
    await make_ledger(sqlite_url)
    async with await Ledger.open(sqlite_url) as ledger:
        run = await run_job(
            remember, {"text": "x"}, ledger=ledger, settings={"storage_url": "file:///mine"}
        )
    assert run.result == {"jobs": 0, "url": "file:///mine"}
    with pytest.raises(ValueError, match="no setting llm_url"):
        await run_job(remember, {"text": "x"}, settings={"llm_url": "x"})


async def test_a_handler_declared_in_the_test_itself_runs() -> None:
    @job("inner", worker="llm", lanes=("hot",))
    async def inner(payload: Text, ctx: JobContext) -> Outcome:
        return Next([Job("inner", {"text": "x"}), Job("summarize_content", {"document_id": "d"})])

    run = await run_job(inner, {"text": "a"}, modules=["tests.support.jobs"])
    assert [each.message.job_type for each in run.published] == ["inner", "summarize_content"], (
        run.failure
    )


class Pages(BaseModel):
    pages: int


@job("split", worker="llm", lanes=("hot",), timeout=5)
async def split(payload: Pages, ctx: JobContext) -> Outcome:
    jobs = [Job("shout", {"text": str(page)}) for page in range(payload.pages)]
    return Next(jobs, then=Job("merge", {"pages": payload.pages}), when_dead="go_on")


@job("merge", worker="llm", lanes=("hot",), timeout=5)
async def merge(payload: Pages, ctx: JobContext) -> Outcome:
    texts = [(each.result or {})["text"] async for each in ctx.joined(state=State.SUCCEEDED)]
    failed = [each.job_id async for each in ctx.joined(state=State.DEAD)]
    return Done({"text": " ".join(texts), "failed": failed})


async def test_the_result_has_the_joining_job() -> None:
    run = await run_job(split, {"pages": 2})
    assert run.then is not None
    assert run.then.message.payload == {"pages": 2}
    assert run.then.joins is not None
    assert run.then.joins.when_dead == "go_on"
    assert [each.join_id for each in run.published] == [run.then.message.job_id] * 2 + [None]
    assert (await run_job(shout, {"text": "a"})).then is None


async def test_a_test_can_pass_the_jobs_that_were_joined() -> None:
    dead = JoinedJob("d", "shout", State.DEAD, None, {"text": "c"}, None, "Broken", "no page")
    run = await run_job(merge, {"pages": 3}, joined=[{"text": "A"}, {"text": "B"}, dead])
    assert run.result == {"text": "A B", "failed": ["d"]}
    assert (await run_job(merge, {"pages": 0})).result == {"text": "", "failed": []}
