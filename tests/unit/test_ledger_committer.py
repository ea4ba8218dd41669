import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from switchyard.services.engine.ledger.sql.committer import GroupCommitter
from switchyard.services.engine.records.errors import (
    LedgerClosed,
    LedgerUnavailable,
    RowRejected,
)
from tests.support.eventually import MAX_WAIT


@dataclass(frozen=True)
class Write:
    job_id: str
    order: ClassVar[int] = 0

    def apply(self, rows: object) -> str:
        return self.job_id


class Commits:
    """Remembers batches; holds the first one until it is let go."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __call__(self, operations: Sequence[Any]) -> list[str]:
        names = [operation.job_id for operation in operations]
        self.batches.append(names)
        self.started.set()
        await self.go_on.wait()
        if "bad" in names:
            raise RowRejected("bad")
        return names


async def test_what_comes_during_a_commit_goes_into_the_next() -> None:
    commits = Commits()
    committer = GroupCommitter(commits, max_batch=3)
    first = asyncio.create_task(committer.submit(Write("a")))
    await commits.started.wait()
    later = [asyncio.create_task(committer.submit(Write(name))) for name in "bcdef"]
    await asyncio.sleep(0)
    commits.go_on.set()
    assert await asyncio.gather(first, *later) == list("abcdef")
    assert commits.batches == [["a"], ["b", "c", "d"], ["e", "f"]]


async def test_a_bad_operation_fails_alone() -> None:
    commits = Commits()
    commits.go_on.set()
    committer = GroupCommitter(commits)
    answers = await committer.submit_many([Write("a"), Write("bad"), Write("c")])
    assert [answers[0], answers[2]] == ["a", "c"]
    assert isinstance(answers[1], RowRejected)


async def test_a_database_that_is_away_fails_all_and_is_asked_once() -> None:
    asked: list[int] = []

    async def away(operations: Sequence[Any]) -> list[str]:
        asked.append(len(operations))
        raise LedgerUnavailable("away")

    committer = GroupCommitter(away)
    answers = await committer.submit_many([Write("a"), Write("b")])
    assert [type(answer) for answer in answers] == [LedgerUnavailable, LedgerUnavailable]
    assert answers[0] is not answers[1]
    assert asked == [2]


async def test_a_cancelled_caller_leaves_the_others_their_answers() -> None:
    commits = Commits()
    committer = GroupCommitter(commits)
    tasks = [asyncio.create_task(committer.submit(Write(name))) for name in "abc"]
    await commits.started.wait()
    tasks[1].cancel()
    commits.go_on.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(answers[1], asyncio.CancelledError)
    assert [answers[0], answers[2]] == ["a", "c"]


async def test_closing_waits_for_what_is_under_way() -> None:
    commits = Commits()
    committer = GroupCommitter(commits)
    task = asyncio.create_task(committer.submit(Write("a")))
    await commits.started.wait()
    closing = asyncio.create_task(committer.close())
    await asyncio.sleep(0)
    assert not closing.done()
    commits.go_on.set()
    await closing
    assert await task == "a"


async def test_a_fault_that_nobody_foresaw_reaches_its_caller() -> None:
    async def broken(operations: Sequence[Any]) -> list[str]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await GroupCommitter(broken).submit(Write("a"))


async def test_nobody_waits_for_ever_when_the_answers_are_too_few() -> None:
    async def commit(operations: Sequence[Any]) -> list[str]:
        return []

    committer = GroupCommitter(commit)
    with pytest.raises(LedgerUnavailable, match="not known"):
        await asyncio.wait_for(committer.submit(Write("a")), MAX_WAIT)


async def test_what_nobody_waits_for_goes_with_the_next_operation() -> None:
    commits = Commits()
    commits.go_on.set()
    committer = GroupCommitter(commits)
    soon = committer.submit_soon(Write("soon"))
    assert await committer.submit(Write("a")) == "a"
    assert await soon == "soon"
    assert commits.batches == [["soon", "a"]]


async def test_what_nobody_waits_for_is_committed_alone_or_at_the_end() -> None:
    commits = Commits()
    commits.go_on.set()
    committer = GroupCommitter(commits)
    assert await asyncio.wait_for(committer.submit_soon(Write("alone")), MAX_WAIT) == "alone"
    last = committer.submit_soon(Write("last"))
    await committer.close()
    assert await last == "last"
    with pytest.raises(LedgerClosed):
        await committer.submit_soon(Write("late"))
