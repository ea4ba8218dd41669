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


class RecordedCommits:
    """Records the batches that are committed; none ends before `go_on` is set."""

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


async def test_operations_during_a_commit_go_into_the_next_one() -> None:
    commits = RecordedCommits()
    committer = GroupCommitter(commits, max_batch=3)
    first = asyncio.create_task(committer.submit(Write("a")))
    await commits.started.wait()
    later_writes = [asyncio.create_task(committer.submit(Write(name))) for name in "bcdef"]
    await asyncio.sleep(0)
    commits.go_on.set()
    assert await asyncio.gather(first, *later_writes) == list("abcdef")
    assert commits.batches == [["a"], ["b", "c", "d"], ["e", "f"]]


async def test_a_rejected_operation_fails_alone() -> None:
    commits = RecordedCommits()
    commits.go_on.set()
    committer = GroupCommitter(commits)
    answers = await committer.submit_many([Write("a"), Write("bad"), Write("c")])
    assert [answers[0], answers[2]] == ["a", "c"]
    assert isinstance(answers[1], RowRejected)


async def test_an_unreachable_database_fails_all_operations_and_is_tried_once() -> None:
    batch_sizes: list[int] = []

    async def fail(operations: Sequence[Any]) -> list[str]:
        batch_sizes.append(len(operations))
        raise LedgerUnavailable("away")

    committer = GroupCommitter(fail)
    answers = await committer.submit_many([Write("a"), Write("b")])
    assert [type(answer) for answer in answers] == [LedgerUnavailable, LedgerUnavailable]
    assert answers[0] is not answers[1]
    assert batch_sizes == [2]


async def test_a_cancelled_caller_leaves_the_others_their_answers() -> None:
    commits = RecordedCommits()
    committer = GroupCommitter(commits)
    tasks = [asyncio.create_task(committer.submit(Write(name))) for name in "abc"]
    await commits.started.wait()
    tasks[1].cancel()
    commits.go_on.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(answers[1], asyncio.CancelledError)
    assert [answers[0], answers[2]] == ["a", "c"]


async def test_closing_waits_for_running_commits() -> None:
    commits = RecordedCommits()
    committer = GroupCommitter(commits)
    task = asyncio.create_task(committer.submit(Write("a")))
    await commits.started.wait()
    closing = asyncio.create_task(committer.close())
    await asyncio.sleep(0)
    assert not closing.done()
    commits.go_on.set()
    await closing
    assert await task == "a"


async def test_an_unexpected_error_reaches_the_caller() -> None:
    async def fail(operations: Sequence[Any]) -> list[str]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await GroupCommitter(fail).submit(Write("a"))


async def test_an_operation_without_a_result_fails_instead_of_waiting() -> None:
    async def commit(operations: Sequence[Any]) -> list[str]:
        return []

    committer = GroupCommitter(commit)
    with pytest.raises(LedgerUnavailable, match="not known"):
        await asyncio.wait_for(committer.submit(Write("a")), MAX_WAIT)


async def test_an_operation_submitted_soon_goes_with_the_next_one() -> None:
    commits = RecordedCommits()
    commits.go_on.set()
    committer = GroupCommitter(commits)
    soon_result = committer.submit_soon(Write("soon"))
    assert await committer.submit(Write("a")) == "a"
    assert await soon_result == "soon"
    assert commits.batches == [["soon", "a"]]


async def test_an_operation_submitted_soon_is_committed_alone_or_on_closing() -> None:
    commits = RecordedCommits()
    commits.go_on.set()
    committer = GroupCommitter(commits)
    assert await asyncio.wait_for(committer.submit_soon(Write("alone")), MAX_WAIT) == "alone"
    last_result = committer.submit_soon(Write("last"))
    await committer.close()
    assert await last_result == "last"
    with pytest.raises(LedgerClosed):
        await committer.submit_soon(Write("late"))
