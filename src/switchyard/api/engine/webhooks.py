"""`/webhooks/…`: deliveries of other systems. They have no API key, but sign what they send.

Not in `/openapi.json`: each sender decides the form of its deliveries.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Request, Response
from pydantic import SecretStr

from switchyard.api.engine.job_publishing import prepare_job
from switchyard.api.http.problems import Problem
from switchyard.api.http.routing import Routes
from switchyard.api.models.service import DeliveryView
from switchyard.api.state import Shared
from switchyard.broker import patterns
from switchyard.broker.errors import NeverTaken, PublishError
from switchyard.services.engine.access.signing import PREFIX, is_signed, may_be_signature
from switchyard.services.engine.publishing.preparing import JobRequest
from switchyard.services.engine.publishing.publisher import Published
from switchyard.services.engine.publishing.requests import job_id_for
from switchyard.services.engine.records.requests import namespaced_key
from switchyard.services.engine.webhooks.deliveries import DeliveryJob, Ignored, github_job

router = Routes(prefix="/webhooks", tags=["webhooks"], include_in_schema=False)

RETRY_DELAY = 5.0
"""Seconds until a job is published whose lane was full, or whose broker was away. Senders of
webhooks do not repeat a delivery, so its job is recorded and waits."""


@router.post("/github")
async def receive_github(request: Request, state: Shared, response: Response) -> DeliveryView:
    """Take a delivery of GitHub."""
    secret = state.settings.github_webhook_secret
    if secret is None:
        raise Problem("not-found", "set JOBS_GITHUB_WEBHOOK_SECRET to take GitHub's webhooks")
    body = await _signed_body(request, secret, "X-Hub-Signature-256", PREFIX)
    event = request.headers.get("x-github-event", "")
    delivery_job = github_job(event, body)
    return await _answer_delivery(state, response, delivery_job, "github")


@router.post("/{source}")
async def receive_webhook(
    source: Annotated[str, Path(pattern=patterns.NAME)],
    request: Request,
    state: Shared,
    response: Response,
) -> DeliveryView:
    """Take a delivery of a system that the file of JOBS_WEBHOOKS names."""
    webhook_source = state.webhooks.get(source)
    if webhook_source is None:
        raise Problem("not-found", f"there is no webhook {source!r}")
    source_settings, secret = webhook_source
    body = await _signed_body(request, secret, source_settings.signature, source_settings.prefix)
    delivery_id = (
        request.headers.get(source_settings.delivery)
        if source_settings.delivery is not None
        else None
    )
    return await _answer_delivery(
        state, response, source_settings.job(source, body, delivery_id), source
    )


async def _answer_delivery(
    state: Shared, response: Response, delivery_job: DeliveryJob | Ignored, source: str
) -> DeliveryView:
    if isinstance(delivery_job, Ignored):
        return DeliveryView(ignored=delivery_job.why)
    published = await _publish(state, delivery_job, f"webhook:{source}")
    response.status_code = 202
    response.headers["Location"] = f"/jobs/{published.job_id}"
    return DeliveryView(job_id=published.job_id, duplicate=published.duplicate)


async def _publish(state: Shared, delivery_job: DeliveryJob, source: str) -> Published:
    """Publish the job, or record it for later. Raises Problem, InvalidRequest, LedgerError."""
    broker = state.require_broker()
    job_type = delivery_job.routing_key.partition(".")[2]
    key = namespaced_key(source, delivery_job.key)
    ids = await state.ledger.system.job_ids()
    request = JobRequest(
        delivery_job.routing_key,
        delivery_job.payload,
        source=source,
        idempotency_key=key,
        tags=delivery_job.tags,
        job_id=job_id_for(ids, key, job_type, delivery_job.payload),
    )
    job = await prepare_job(broker, request, by_routing_key=True)
    try:
        return await broker.jobs.publish_one(job)
    except PublishError as error:
        if isinstance(error, NeverTaken) or not error.left_nothing:
            raise
    later = JobRequest(
        request.routing_key,
        request.payload,
        source=source,
        delay=RETRY_DELAY,
        idempotency_key=key,
        tags=delivery_job.tags,
        job_id=request.job_id,
    )
    return await broker.jobs.publish_one(await prepare_job(broker, later, by_routing_key=True))


async def _signed_body(request: Request, secret: SecretStr, header: str, prefix: str) -> bytes:
    """Read the body, and check its signature. A request whose header can't be a signature is
    refused before its body is read, as anybody can send one. Raises Problem (401)."""
    signature = request.headers.get(header, "")
    refused = Problem("unauthorized", "the signature is not that of this delivery")
    if not may_be_signature(signature, prefix=prefix):
        raise refused
    body = await request.body()
    if not is_signed(body, signature, secret.get_secret_value(), prefix=prefix):
        raise refused
    return body
