"""A web service of your own that hands long work to a job, and shows its progress.

Start the system as README.md says, then:

    uvicorn report_service:app --port 9001 &
    curl -sS --retry 9 --retry-connrefused -L http://127.0.0.1:9001/reports -d title=March

curl follows the answer to the report's progress, which is a stream: a line for each step, until the
report is written. The service keeps nothing itself, so any number of its processes can run.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Form, HTTPException, Request, status
from fastapi.responses import RedirectResponse, StreamingResponse
from pydantic import BaseModel, Field

from switchyard import AsyncClient, Done, JobContext, Outcome, job
from switchyard.api.client import ApiError, NotFound


class Report(BaseModel):
    title: str = Field(max_length=200)


@job("write_report", worker="reports", lanes=("hot",), timeout=600)
async def write_report(payload: Report, ctx: JobContext) -> Outcome:
    chapters = ["sales", "stock", "staff"]
    for number, chapter in enumerate(chapters):
        ctx.progress(number / len(chapters), f"writing about {chapter}")
        await asyncio.sleep(1)  # your work here
    return Done({"title": payload.title, "chapters": chapters})


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with AsyncClient() as app.state.jobs:  # JOBS_API_URL, JOBS_API_KEY
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/reports")
async def order_report(
    request: Request, title: Annotated[str, Form(max_length=200)]
) -> RedirectResponse:
    jobs: AsyncClient = request.app.state.jobs
    try:
        accepted = await jobs.publish("hot.write_report", {"title": title})
    except ApiError as error:  # the lane is full, the broker away: nothing was kept
        raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, error.title) from error
    return RedirectResponse(f"/reports/{accepted.job_id}", status.HTTP_303_SEE_OTHER)


@app.get("/reports/{job_id}")
async def stream_progress(request: Request, job_id: str) -> StreamingResponse:
    jobs: AsyncClient = request.app.state.jobs
    try:
        await jobs.job_status(job_id)
    except NotFound as error:
        raise HTTPException(status.HTTP_404_NOT_FOUND) from error
    return StreamingResponse(progress_lines(jobs, job_id), media_type="application/x-ndjson")


async def progress_lines(jobs: AsyncClient, job_id: str) -> AsyncIterator[str]:
    async with aclosing(jobs.job_events(job_id)) as events:
        async for event in events:
            if event.name == "progress":
                yield json.dumps({"done": event.data["fraction"], "now": event.data["note"]}) + "\n"
    report = await jobs.job(job_id)
    yield json.dumps({"state": report.state, "report": report.result}) + "\n"
