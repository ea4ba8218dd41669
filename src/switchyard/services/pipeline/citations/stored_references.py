"""Read the stored references of a document, with the works that they are linked to."""

import json
from typing import Any

from pydantic_core import from_json

from switchyard.services.common.files.errors import NotStored
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_keys import links_key, references_key


async def stored_references(storage: Storage, document_id: str) -> dict[str, Any] | None:
    """Return the stored `references` of a document, each with its `link` after `link_citations`,
    and its `citations`. None where its references were not searched for yet. Raises
    StorageError."""
    stored = await _read_json(storage, references_key(document_id))
    if stored is None:
        return None
    stored_links = await _read_json(storage, links_key(document_id)) or {}
    links = stored_links.get("links", [])
    # Links that were made for an earlier list of references do not match this one.
    if stored_links.get("references_hash") == stored.get("hash") and len(links) == len(
        stored["references"]
    ):
        for reference, link in zip(stored["references"], links, strict=True):
            reference["link"] = link
    return stored


async def _read_json(storage: Storage, key: str) -> dict[str, Any] | None:
    try:
        content = await storage.get_async(key)
    except NotStored:
        return None
    try:
        # Twice as fast as `json`, which would block the event loop for long with a large file.
        return dict(from_json(content))
    except ValueError:  # pydantic refuses lone surrogates
        return dict(json.loads(content))
