"""The services of documents, extractions and references, as FastAPI dependencies.

The application opens them when it starts (`open_document_services`): `app.state.document_services`.
The functions are async because FastAPI would run others in a thread each.
"""

from __future__ import annotations

from typing import Annotated, Any, Protocol

from fastapi import Depends, Request

from switchyard.services.engine.records.results import JobRecord
from switchyard.services.pipeline.documents.document_service import (
    DocumentService,
    DocumentServices,
)
from switchyard.services.pipeline.documents.extractions import ExtractionService
from switchyard.services.pipeline.documents.page_pictures import PagePictures
from switchyard.services.pipeline.documents.reference_orders import (
    ReferenceService,
    StageProgress,
)


class JobOutputs(Protocol):
    """What is known of jobs beyond their records: the wing that stores it reads it."""

    async def stages(self, record: JobRecord) -> StageProgress | None:
        """Return which of a job's own stages are done; None where it has none."""
        ...

    async def output(self, record: JobRecord) -> dict[str, Any] | None:
        """Return the part of a job's result that is in storage; None where there is none."""
        ...


def _document_services(request: Request) -> DocumentServices:
    services: DocumentServices = request.app.state.document_services
    return services


async def _documents(request: Request) -> DocumentService:
    return _document_services(request).documents


async def _extractions(request: Request) -> ExtractionService:
    return _document_services(request).extractions


async def _references(request: Request) -> ReferenceService:
    return _document_services(request).references


async def _pictures(request: Request) -> PagePictures:
    return _document_services(request).pictures


# The types of parameters of requests: FastAPI passes the object that the function makes.
DocumentsOf = Annotated[DocumentService, Depends(_documents)]
ExtractionsOf = Annotated[ExtractionService, Depends(_extractions)]
ReferencesOf = Annotated[ReferenceService, Depends(_references)]
JobOutputsOf = Annotated[JobOutputs, Depends(_references)]
PagePicturesOf = Annotated[PagePictures, Depends(_pictures)]
