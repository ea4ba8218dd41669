"""A hand-written `POST /jobs`: FastAPI, a row inserted with SQLAlchemy, a confirmed publish by
aio-pika. No keys, limits, idempotency or outbox.

with_fastapi PORT           serve on that port; BENCH_AMQP_URL, JOBS_DATABASE_URL
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import aio_pika
import uvicorn
from fastapi import FastAPI, Request
from pydantic import BaseModel
from sqlalchemy import JSON, Column, DateTime, MetaData, Table, Text, insert
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.common import URL

QUEUE = "bench.fastapi"
METADATA = MetaData()
JOBS = Table(
    "plain_jobs",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("routing_key", Text, nullable=False),
    Column("source", Text),
    Column("payload", JSON, nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
)


class NewJob(BaseModel):
    routing_key: str
    payload: dict[str, Any]
    source: str | None = None


class AcceptedJob(BaseModel):
    job_id: str
    state: str = "queued"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    engine = create_async_engine(os.environ["JOBS_DATABASE_URL"])
    async with engine.begin() as connection:
        await connection.run_sync(METADATA.create_all)
    async with await aio_pika.connect_robust(os.environ[URL]) as broker:
        channel = await broker.channel()
        await channel.declare_queue(QUEUE, durable=True, arguments={"x-max-priority": 10})
        app.state.engine, app.state.exchange = engine, channel.default_exchange
        yield
    await engine.dispose()


app = FastAPI(lifespan=lifespan)


@app.get("/health/ready")
async def ready() -> dict[str, str]:
    return {"status": "ok"}


@app.post("/jobs", status_code=202)
async def publish(job: NewJob, request: Request) -> AcceptedJob:
    job_id = str(uuid4())
    async with request.app.state.engine.begin() as connection:
        await connection.execute(
            insert(JOBS).values(
                id=job_id,
                routing_key=job.routing_key,
                source=job.source,
                payload=job.payload,
                created_at=datetime.now(UTC),
            )
        )
    message = aio_pika.Message(
        json.dumps({"job_id": job_id, "payload": job.payload}).encode(),
        delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        message_id=job_id,
        priority=1,
        content_type="application/json",
    )
    await request.app.state.exchange.publish(message, QUEUE, mandatory=True)
    return AcceptedJob(job_id=job_id)


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), access_log=False, log_level="warning")
