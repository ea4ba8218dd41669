"""Read the stored references of a document, with the works that they are linked to."""

from typing import Any

from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_keys import links_key, references_key


async def stored_references(storage: Storage, document_id: str) -> dict[str, Any] | None:
    """Return the stored dict of a document's `references` and `citations`. Once `link_citations`
    has run, each reference has its `link`. None where the document's references were not searched
    for yet. Raises StorageError."""
    stored = await storage.get_json_async(references_key(document_id))
    if stored is None:
        return None
    stored_links = await storage.get_json_async(links_key(document_id)) or {}
    links = stored_links.get("links", [])
    # Links that were made for an earlier list of references do not match this one.
    if stored_links.get("references_hash") == stored.get("hash") and len(links) == len(
        stored["references"]
    ):
        for reference, link in zip(stored["references"], links, strict=True):
            reference["link"] = link
    return stored
