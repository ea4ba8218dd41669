"""A source of documents: a server, and what it has under a name.

    class Zenodo(DocumentSource):
        name = "zenodo"
        label = "Zenodo"
        base_url = "https://zenodo.org/api"

        async def find(self, item: SourceItem, client: SourceClient) -> FoundDocument:
            record = (await client.get(f"/records/{item.id}", conditional=True)).json()
            ...
            return FoundDocument(id=item.id, title=title, text=text, metadata={...})

    ingest_zenodo = ingest_job(Zenodo())  # services/pipeline/workers/ingest/source_jobs.py

Pace, pauses, ETags, errors, and finding out what has changed are no concern of such a class.
docs/sources.md has a complete example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from switchyard.services.common.json_values import list_in
from switchyard.services.common.printable import quoted_answer
from switchyard.services.pipeline.records.strict_model import StrictModel
from switchyard.services.pipeline.sources.source_client import SourceClient, SourceServer

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings

MAX_TEXT = 2 * 1024 * 1024
"""Longest document, in characters, that is put together from a server's answers."""


class SourceItem(StrictModel):
    """The payload of a job that takes in a document of a source. A source that needs more fields
    makes a subclass."""

    id: str = Field(min_length=1, max_length=500)
    """Name of the item at the source."""
    force: bool = False
    """Run the stages again although the document has not changed."""


@dataclass(frozen=True, slots=True)
class FoundDocument:
    """The document that a source has under a name now."""

    id: str
    """Its canonical name at the source, whatever name the payload has."""
    title: str
    text: str = ""
    """Markdown."""
    data: bytes | None = field(default=None, repr=False)
    """A file (PDF, image), instead of the text."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """JSON that becomes `entry` in the document's result. A change of it renews the document, so
    leave out values that change by the minute."""


class DocumentSource(ABC):
    """Base of all sources of documents."""

    name: ClassVar[str]
    """Names the job type (`ingest_NAME`), the documents' source (`NAME:ID`) and the leases in the
    ledger: lower-case letters, digits and `_`."""
    label: ClassVar[str]
    """Name in messages for people."""
    base_url: ClassVar[str] = ""
    interval: ClassVar[float] = 1.0
    """Least seconds between two requests, all processes together."""
    requests: ClassVar[int] = 3
    """Most requests that one document takes."""

    def server(self, settings: Settings) -> SourceServer:
        """Return the server: its address, and the bounds of requests to it."""
        return SourceServer(
            self.name, label=self.label, base_url=self.base_url, interval=self.interval
        )

    @abstractmethod
    async def find(self, item: Any, client: SourceClient) -> FoundDocument:
        """Fetch the document; `item` is the job's payload, of the model that the annotation names.
        Raises errors of services/pipeline/sources/source_errors.py; the client's errors may pass
        through."""


def is_prose(value: object) -> bool:
    """Return whether a field of a foreign answer is a text that is not blank."""
    return isinstance(value, str) and bool(value.strip())


def mapping(value: object, noun: str, label: str) -> Mapping[str, Any]:
    """Return a foreign answer that must be a JSON object. Raises InvalidSourceResponse."""
    from switchyard.services.pipeline.sources.source_errors import InvalidSourceResponse

    if not isinstance(value, dict):
        raise InvalidSourceResponse(
            f"{label} returned no JSON object for the {noun}, but {quoted_answer(value)}"
        )
    return value


def words(value: object) -> list[str]:
    """Return the first 100 texts of a list in a foreign answer (topics, tags), each cut to 200
    characters."""
    return [each[:200] for each in list_in(value) if isinstance(each, str)][:100]
