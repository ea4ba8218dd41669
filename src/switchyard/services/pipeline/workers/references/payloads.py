"""The payloads of the job types on references."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from switchyard.broker import patterns
from switchyard.services.engine.jobs.local_fields import LocalOnly
from switchyard.services.pipeline.citations.reference_limits import (
    MAX_REFERENCES,
    OneReference,
    Text,
)
from switchyard.services.pipeline.records.strict_model import StrictModel
from switchyard.services.pipeline.workers.stages import DocumentId


class _FileOrText(StrictModel):
    """References in a file that was uploaded, or in a text."""

    key: Annotated[
        str | None,
        LocalOnly(
            "send the file to POST /process/references, /extract/references or /parse/references"
        ),
    ] = Field(default=None, pattern=patterns.INCOMING_KEY)
    filename: str | None = Field(default=None, max_length=1000)
    text: Text | None = None


class FindReferences(_FileOrText):
    """Payload of `extract_references` and `process_references`: where to find the references. A
    document that was taken in, a text, or the `key` of an upload."""

    document_id: DocumentId | None = None
    force: bool = False
    """Run the stages again although their outputs are kept."""

    @model_validator(mode="after")
    def _check_one_given(self) -> FindReferences:
        if sum(each is not None for each in (self.document_id, self.key, self.text)) != 1:
            raise ValueError("give one of document_id, text and key")
        return self


class ParseReferences(_FileOrText):
    """Payload of `parse_references`: references as text. Either a list of references; or a text, or
    the `key` of an upload, with one reference to a line, or with blank lines between references."""

    references: list[OneReference] | None = Field(
        default=None, min_length=1, max_length=MAX_REFERENCES
    )

    @model_validator(mode="after")
    def _check_one_given(self) -> ParseReferences:
        if sum(each is not None for each in (self.references, self.key, self.text)) != 1:
            raise ValueError("give one of references, text and key")
        return self


class LinkCitations(StrictModel):
    """Payload of `link_citations`: a document after `process_references`, or references as text."""

    document_id: DocumentId | None = None
    references: list[OneReference] | None = Field(
        default=None, min_length=1, max_length=MAX_REFERENCES
    )
    force: bool = False
    """As in DocumentJob."""

    @model_validator(mode="after")
    def _check_one_given(self) -> LinkCitations:
        if (self.document_id is None) == (self.references is None):
            raise ValueError("give one of document_id and references")
        return self
