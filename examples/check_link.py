"""A job that is retried, and that limits its requests to each host.

It reports the status with which a link is answered. If the server is away or overloaded, the job is
retried later. No host is asked by more than two jobs at once, nor more than 60 times a minute,
however many workers run.

Start the system as README.md says. Nothing listens on port 9000 at first, so the first job has to
be retried:

    jobctl publish hot.check_link --payload '{"url": "http://127.0.0.1:9000/"}'
    python -m http.server 9000 --bind 127.0.0.1 &
    jobctl publish hot.check_link --payload '{"url": "http://127.0.0.1:9000/none"}' --wait || true
    jobctl jobs list --type check_link

The second job is a dead letter, since a request for a missing page is not retried. The first one
succeeds within seconds. `jobctl limits` shows what runs now, for each host.
"""

from typing import Annotated

import httpx
from pydantic import BaseModel, HttpUrl

from switchyard import (
    Done,
    JobContext,
    Limit,
    LocalOnly,
    Outcome,
    PermanentError,
    RetryableError,
    job,
)


class Link(BaseModel):
    # A worker reaches servers that a stranger can't: nobody may set this over HTTP.
    url: Annotated[HttpUrl, LocalOnly()]


def host_of(link: Link) -> str:
    return link.url.host or ""


PER_HOST = Limit("link_hosts", concurrency=2, per_minute=60, key=host_of)


@job("check_link", worker="links", lanes=("hot", "backfill"), limits=[PER_HOST], max_attempts=5)
async def check_link(payload: Link, ctx: JobContext) -> Outcome:
    async with httpx.AsyncClient(timeout=20) as client:
        answer = await client.head(str(payload.url))  # an error of the connection is retried, too
    if answer.status_code in (429, 502, 503, 504):
        seconds = answer.headers.get("Retry-After", "")
        after = float(seconds) if seconds.isdecimal() else None
        raise RetryableError(f"the server answers {answer.status_code}", after=after)
    if answer.is_client_error:
        raise PermanentError(f"the server answers {answer.status_code}")
    return Done({"status": answer.status_code})
