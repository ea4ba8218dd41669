"""The services of documents, extractions and references, as FastAPI dependencies.

The application opens them when it starts (`open_document_services`): `app.state.document_services`.
The functions are async because FastAPI would run others in a thread each.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from switchyard.services.pipeline.documents.document_service import (
    DocumentService,
    DocumentServices,
)
from switchyard.services.pipeline.documents.extractions import ExtractionService
from switchyard.services.pipeline.documents.page_pictures import PagePictures
from switchyard.services.pipeline.documents.reference_orders import ReferenceService


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


DocumentsOf = Annotated[DocumentService, Depends(_documents)]
ExtractionsOf = Annotated[ExtractionService, Depends(_extractions)]
ReferencesOf = Annotated[ReferenceService, Depends(_references)]
PagePicturesOf = Annotated[PagePictures, Depends(_pictures)]
