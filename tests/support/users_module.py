"""A user's module that imports public names alone, so that mypy checks their types."""

# mypy: disallow-any-generics, disallow-untyped-calls, disallow-untyped-decorators
# mypy: disallow-untyped-defs, warn-return-any, disallow-any-unimported

from collections.abc import AsyncGenerator, Generator
from typing import assert_type

from pydantic import BaseModel

from switchyard import (
    AsyncClient,
    BlockingPublisher,
    Client,
    Discard,
    Done,
    Job,
    JobContext,
    JobMessage,
    JobPublisher,
    JobRequest,
    Next,
    Outcome,
    PermanentError,
    Retry,
    RetryableError,
    Snooze,
    job,
)
from switchyard.api.models.jobs import JobDetails, JobView
from switchyard.services.engine.publishing.publisher import Published


class Payload(BaseModel):
    n: int


@job("count_up", worker="counter", lanes=("hot",))
async def count_up(payload: Payload, ctx: JobContext) -> Outcome:
    assert_type(ctx.attempt, int)
    if payload.n < 0:
        raise PermanentError("negative")
    if payload.n == 0:
        raise RetryableError("not yet", after=5)
    return Next([Job("count_up", {"n": payload.n - 1})])


OUTCOMES: list[Outcome] = [Done(), Retry("later"), Snooze(5), Discard("never")]
WRONG: int = Done()  # type: ignore[assignment]  # not just Any


def publish(publisher: BlockingPublisher) -> str:
    message = JobMessage(job_type="count_up", payload={"n": 1})
    return assert_type(publisher.publish(message, "hot.count_up").job_id, str)


async def publish_async() -> None:
    async with JobPublisher.opened() as jobs:
        assert_type(await jobs.publish(JobRequest("hot.count_up", {"n": 1})), Published)


def ask(client: Client) -> None:
    assert_type(client.job("1"), JobDetails)
    assert_type(client.jobs(lane="hot"), Generator[JobView, None, None])


async def ask_async(client: AsyncClient) -> None:
    assert_type(await client.job("1"), JobDetails)
    assert_type(client.jobs(lane="hot"), AsyncGenerator[JobView, None])
