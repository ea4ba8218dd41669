"""Models and data sets of the Hugging Face hub: the card, and the hub's metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal
from urllib.parse import quote

from pydantic import AfterValidator, Field

from switchyard.services.pipeline.records.strict_model import StrictModel
from switchyard.services.pipeline.sources.document_source import (
    MAX_TEXT,
    DocumentSource,
    FoundDocument,
    is_prose,
    mapping,
    words,
)
from switchyard.services.pipeline.sources.source_client import SourceClient, SourceServer
from switchyard.services.pipeline.sources.source_errors import InvalidSourceResponse, SourceNotFound

if TYPE_CHECKING:
    from switchyard.services.common.settings import Settings

Kind = Literal["model", "dataset"]
_NAME = re.compile(
    r"(?:https?://huggingface\.co/(?:datasets/)?)?"
    r"(?P<id>(?:[A-Za-z0-9][\w.-]{0,95}/)?[A-Za-z0-9][\w.-]{0,95})/?",
    re.ASCII,
)
_FRONT_MATTER = re.compile(r"\A\ufeff?---[ \t]*\r?\n.*?^---[ \t]*(?:\r?\n|\Z)", re.S | re.M)
_DETAILS = ("author", "sha", "lastModified", "pipeline_tag", "library_name", "createdAt")


def hub_name(text: str) -> str:
    """Return `owner/name`, or `name` of the oldest models. Raises ValueError."""
    match = _NAME.fullmatch(text.strip())
    if match is None or ".." in match["id"]:
        raise ValueError(f"{text[:100]!r} is no name of the hub: use owner/name")
    return match["id"]


class IngestHuggingface(StrictModel):
    """Payload of `ingest_huggingface`."""

    id: Annotated[str, AfterValidator(hub_name)] = Field(max_length=300)
    """The model or data set as `owner/name`, or its address."""
    kind: Kind = "model"
    force: bool = False
    """Run the stages again although the document has not changed."""


def hub_server(settings: Settings) -> SourceServer:
    """Return the hub's server with the address and the token of the settings."""
    token = settings.hf_token
    return SourceServer(
        "huggingface",
        label="Hugging Face",
        base_url=settings.hf_base_url.rstrip("/"),
        interval=settings.hf_interval,
        headers={"Authorization": f"Bearer {token.get_secret_value()}"} if token else {},
    )


class HuggingfaceSource(DocumentSource):
    """Makes one document of each model or data set: `huggingface:model/owner/name`."""

    name: ClassVar[str] = "huggingface"
    label: ClassVar[str] = "Hugging Face"
    requests: ClassVar[int] = 2

    def server(self, settings: Settings) -> SourceServer:
        return hub_server(settings)

    async def find(self, item: IngestHuggingface, client: SourceClient) -> FoundDocument:
        answer = await client.get(f"/api/{item.kind}s/{quote(item.id)}", conditional=True)
        details = mapping(answer.json(), item.kind, self.label)
        try:
            name = hub_name(str(details.get("id")))
        except ValueError as error:
            raise InvalidSourceResponse(f"Hugging Face's {item.kind} has no name") from error
        path_prefix = "" if item.kind == "model" else "/datasets"
        card = ""
        try:
            path = f"{path_prefix}/{quote(name)}/raw/main/README.md"
            card = (await client.get(path, accept="text/plain", conditional=True)).text()
        except SourceNotFound:
            card = ""
        return FoundDocument(
            id=f"{item.kind}/{name}",
            title=name,
            text=_text(name, details, card),
            metadata=_metadata(name, item.kind, details),
        )


def _text(name: str, details: Mapping[str, Any], card: str) -> str:
    parts = [f"# {name}"]
    if is_prose(details.get("description")):  # only data sets have one
        parts.append(details["description"].strip())
    if tags := _tags(details):
        parts.append(f"Tags: {', '.join(tags)}")
    body = _FRONT_MATTER.sub("", card, count=1).strip()
    if body:
        parts.append(body)
    return "\n\n".join(parts)[:MAX_TEXT] + "\n"


def _tags(details: Mapping[str, Any]) -> list[str]:
    """Return the tags for people; those with a colon (`license:mit`, `region:us`) are for
    machines."""
    return [tag for tag in words(details.get("tags")) if ":" not in tag]


def _metadata(name: str, kind: Kind, details: Mapping[str, Any]) -> dict[str, Any]:
    card = details.get("cardData")
    metadata: dict[str, Any] = {"id": name, "kind": kind, "tags": words(details.get("tags"))}
    metadata |= {key: details[key][:500] for key in _DETAILS if is_prose(details.get(key))}
    for key in ("license", "language", "datasets", "base_model"):
        value = card.get(key) if isinstance(card, dict) else None
        if is_prose(value):
            metadata[key] = str(value)[:500]
        elif texts := words(value):
            metadata[key] = texts
    for flag in ("private", "gated", "disabled"):
        metadata[flag] = details.get(flag) not in (None, False)
    return metadata
