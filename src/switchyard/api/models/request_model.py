"""The base class of the bodies of requests. Apart from base.py: programs that only read answers do
without it, and so without pydantic's search for plugins, which comes with the first model built."""

from __future__ import annotations

from typing import Any, Self

from pydantic import ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator

from switchyard.api.models.base import ApiModel
from switchyard.broker.validation import bound_errors


class RequestModel(ApiModel):
    """Body of a request. Built when its class is defined, not at first use: FastAPI gives a body's
    field an alias without effect, and hides pydantic's warning about it only while it makes the
    route."""

    model_config = ConfigDict(defer_build=False)

    @model_validator(mode="wrap")
    @classmethod
    def _bound_errors(cls, body: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """FastAPI lists all errors of a body, however many."""
        try:
            return handler(body)
        except ValidationError as error:
            raise bound_errors(error) from None
