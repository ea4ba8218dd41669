"""The desks of documents, extractions and references, as FastAPI dependencies.

The application opens them when it starts (`services.pipeline.documents.desk.open_desks`):
`app.state.desks`.
All are async: FastAPI runs others in a thread of their own.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from switchyard.services.pipeline.documents.desk import Desks, DocumentDesk
from switchyard.services.pipeline.documents.extractions import ExtractionDesk
from switchyard.services.pipeline.documents.reference_orders import ReferenceDesk


def _desks(request: Request) -> Desks:
    found: Desks = request.app.state.desks
    return found


async def _documents(request: Request) -> DocumentDesk:
    return _desks(request).documents


async def _extractions(request: Request) -> ExtractionDesk:
    return _desks(request).extractions


async def _references(request: Request) -> ReferenceDesk:
    return _desks(request).references


DocumentsOf = Annotated[DocumentDesk, Depends(_documents)]
ExtractionsOf = Annotated[ExtractionDesk, Depends(_extractions)]
ReferenceDeskOf = Annotated[ReferenceDesk, Depends(_references)]
