"""What is sent to the endpoints of references as JSON, and what they answer."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from switchyard.api.models.base import ApiModel, DocumentIdField
from switchyard.services.pipeline.citations.reference_limits import (
    MAX_REFERENCES,
    OneReference,
    Text,
)


class ReferenceRequest(ApiModel):
    """Fields of all requests for references."""

    model_config = ConfigDict(extra="forbid")

    text: Text | None = Field(default=None, description="The text; send a longer one as a file.")
    lane: Literal["hot", "maintenance"] = "hot"


class TextWithReferences(ReferenceRequest):
    """The place where references are: a text, or a stored document."""

    document_id: DocumentIdField | None = None

    @model_validator(mode="after")
    def _check_one_given(self) -> Self:
        if (self.text is None) == (self.document_id is None):
            raise ValueError("give either text or document_id")
        return self


class ReferencesToParse(ReferenceRequest):
    """References of a list: as single texts, or as one text with a reference on each line or with
    blank lines between them."""

    references: list[OneReference] | None = Field(
        default=None, min_length=1, max_length=MAX_REFERENCES
    )

    @model_validator(mode="after")
    def _check_one_given(self) -> Self:
        if (self.text is None) == (self.references is None):
            raise ValueError("give either text or references")
        return self


class OrderedReferences(ApiModel):
    """The job that finds the references."""

    job_id: str
    result: dict[str, Any] | None = Field(
        default=None, description="Without a broker: `references`, and the job's other results."
    )
