"""Limit the number of references, and the length of a text, in one request."""

from typing import Annotated

from pydantic import Field

from switchyard.services.pipeline.citations.tokens import MAX_REFERENCE_CHARS

MAX_REFERENCES = 200
"""References in one payload: the job's record holds all of them, and their result."""
MAX_TEXT_CHARS = 400_000
"""Characters of a text in a payload; a longer one is sent as a file."""

OneReference = Annotated[str, Field(min_length=1, max_length=MAX_REFERENCE_CHARS)]
Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT_CHARS)]
