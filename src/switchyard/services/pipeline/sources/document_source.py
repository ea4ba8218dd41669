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

The pace, the pauses, ETags, errors, and what is new are no concern of such a class. docs/sources.md
has a whole one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from switchyard.services.common.printable import quoted_answer
from switchyard.services.pipeline.sources.source_client import SourceClient, SourceServer

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings

MAX_TEXT = 2 * 1024 * 1024
"""Characters of a document that is put together from a server's answers."""


class SourceItem(BaseModel):
    """What a job asks of a source, as the job's payload. A source of its own kind makes a subclass
    with more fields."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(min_length=1, max_length=500)
    """Its name at the source."""
    force: bool = False
    """Run the stages again although the document is as it was."""


@dataclass(frozen=True, slots=True)
class FoundDocument:
    """What a source has under a name, as it is now."""

    id: str
    """Its own name at the source, the same whatever it was asked for by."""
    title: str
    text: str = ""
    """Markdown."""
    data: bytes | None = field(default=None, repr=False)
    """A file (PDF, image), instead of the text."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """JSON that stands as `entry` in the document's result. It is part of what is new: leave out
    what changes by the minute."""


class DocumentSource(ABC):
    """Base of all sources of documents."""

    name: ClassVar[str]
    """Names the job type (`ingest_NAME`), the documents' source (`NAME:ID`), the pace in the
    ledger: lower-case letters, digits and `_`."""
    label: ClassVar[str]
    """For people."""
    base_url: ClassVar[str] = ""
    interval: ClassVar[float] = 1.0
    """Least seconds between two requests, all processes together."""
    requests: ClassVar[int] = 3
    """How many requests one document takes at most."""

    def server(self, settings: Settings) -> SourceServer:
        """Return the server: its address, and how it wants to be asked."""
        return SourceServer(
            self.name, label=self.label, base_url=self.base_url, interval=self.interval
        )

    @abstractmethod
    async def find(self, item: Any, client: SourceClient) -> FoundDocument:
        """Fetch what the source has; `item` is the job's payload, of the model that the
        annotation names. Raises the errors of services/pipeline/sources/source_errors.py: those of
        the client pass."""


def is_prose(value: object) -> bool:
    """Return whether a field of a foreign answer is text that says something."""
    return isinstance(value, str) and bool(value.strip())


def mapping(value: object, what: str, label: str) -> Mapping[str, Any]:
    """Return a foreign answer that must be a JSON object. Raises InvalidSourceResponse."""
    from switchyard.services.pipeline.sources.source_errors import InvalidSourceResponse

    if not isinstance(value, dict):
        raise InvalidSourceResponse(
            f"{label} returned no JSON object for the {what}, but {quoted_answer(value)}"
        )
    return value


def words(value: object, *, most: int = 100) -> list[str]:
    """Return the texts of a foreign list: topics, tags."""
    texts = value if isinstance(value, list) else []
    return [each[:200] for each in texts if isinstance(each, str)][:most]
