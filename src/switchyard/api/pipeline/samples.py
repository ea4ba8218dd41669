"""`POST /documents/generate`: sample documents, made up and sent through the pipeline."""

from __future__ import annotations

from fastapi import Request, Response

from switchyard.api.dependencies import DocumentsOf
from switchyard.api.http.problems import POLL_AFTER, responses
from switchyard.api.http.routing import Routes
from switchyard.api.middleware.access import needs, source_of
from switchyard.api.models.documents import GenerateBody, SamplesView, SampleView
from switchyard.api.state import Shared
from switchyard.services.engine.access.api_keys import Scope
from switchyard.services.pipeline.documents.sample_orders import order_samples

router = Routes(tags=["samples"])


@router.post(
    "/documents/generate",
    status_code=202,
    dependencies=[needs(Scope.PUBLISH)],
    responses={
        201: {
            "model": SamplesView,
            "description": "Without a broker: the documents are made already.",
        },
        **responses(
            "invalid", "lane-full", "no-queue", "broker-away", "ledger-away", "storage-full"
        ),
    },
)
async def generate_documents(
    body: GenerateBody,
    request: Request,
    response: Response,
    documents: DocumentsOf,
    state: Shared,
) -> SamplesView:
    """Generate sample documents and send them through the pipeline. With a broker, the result of
    the job lists them.
    """
    sample_order = await order_samples(
        state.ledger,
        documents.intake,
        count=body.count,
        seed=body.seed,
        kinds=body.kinds,
        languages=body.languages,
        lane=body.lane,
        asked_by=source_of(request, None),
    )
    response.headers["Location"] = f"/jobs/{sample_order.job_id}"
    if sample_order.documents is None:
        response.headers.update(POLL_AFTER)
        return SamplesView(job_id=sample_order.job_id)
    response.status_code = 201
    views = [SampleView.model_validate(each) for each in sample_order.documents]
    return SamplesView(job_id=sample_order.job_id, documents=views)
