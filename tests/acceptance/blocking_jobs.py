"""A job type that blocks its worker's event loop at its first run."""

from pathlib import Path
from threading import Event

from pydantic import BaseModel

from switchyard import Done, JobContext, Outcome, job


class Blocking(BaseModel):
    mark: str
    """A file that says that it has run before."""


@job("blocking", worker="tester", lanes=("hot",), timeout=20)
async def blocking(payload: Blocking, ctx: JobContext) -> Outcome:
    mark = Path(payload.mark)
    if not mark.exists():
        mark.touch()
        Event().wait(600)
    return Done({})
