"""Job types with named limits, of the worker `llm`; they write into the journal of `jobs`."""

import multiprocessing

from pydantic import BaseModel

from switchyard.services.engine.jobs.context import JobContext
from switchyard.services.engine.jobs.limits import Limit
from switchyard.services.engine.jobs.outcomes import Done, Outcome
from switchyard.services.engine.jobs.registry import job
from tests.support.jobs import journal


class Call(BaseModel):
    account: str = ""
    tokens: int = 0


ACCOUNT = Limit("account", concurrency=1, key="account")
TOKENS = Limit("tokens", tokens_per_minute=100, tokens="tokens")


@job("called", worker="llm", lanes=("hot", "backfill"), timeout=60, limits=[ACCOUNT])
async def called(payload: Call, ctx: JobContext) -> Outcome:
    """Run until the test releases it; one at a time of each account."""
    journal.note_start(ctx)
    at_once = len(journal.starts) - len(journal.ends)
    try:
        if multiprocessing.parent_process() is None:  # a suspect's gate is nobody's to open
            await journal.gate(ctx.job_id)
    finally:
        journal.note_end(ctx.job_id)
    return Done({"at_once": at_once})


@job("counted", worker="llm", lanes=("hot",), timeout=60, limits=[TOKENS])
async def counted(payload: Call, ctx: JobContext) -> Outcome:
    """Use half as many tokens as were estimated."""
    journal.note_start(ctx)
    ctx.report_usage(tokens=payload.tokens // 2)
    return Done()


@job("counted_apart", worker="llm", lanes=("hot",), isolation="process", limits=[TOKENS])
def counted_apart(payload: Call, ctx: JobContext) -> Outcome:
    """Return the same in a process of its own."""
    ctx.report_usage(tokens=payload.tokens // 2)
    return Done()
