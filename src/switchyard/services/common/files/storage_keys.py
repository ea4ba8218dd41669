"""Make and check the keys of stored files, and hash contents."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from switchyard.services.common.files.errors import InvalidKey

MAX_KEY_LENGTH = 900
"""Characters. S3 takes 1,024 bytes, of which the URL's own prefix uses some."""

_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:@=+-]{0,199}")

_SUFFIXES = {
    "application/pdf": "pdf",
    "text/markdown": "md",
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/tiff": "tif",
    "image/webp": "webp",
}


def check_key(key: str) -> str:
    """Return the key itself if it is a relative path of plain segments.

    Segments have letters, digits and `. _ : @ = + -` and do not begin with a dot, so no key
    climbs out of the storage, names a hidden or temporary file, or needs escaping anywhere.
    Raises InvalidKey.
    """
    if len(key) > MAX_KEY_LENGTH or not all(map(_SEGMENT.fullmatch, key.split("/"))):
        raise InvalidKey(f"{key[:100]!r} is not a storage key: use plain names separated by '/'")
    return key


def upload_key(document_id: str, media_type: str) -> str:
    """Return the key of a document's original."""
    return f"uploads/{document_id}/input.{_SUFFIXES.get(media_type, 'txt')}"


def stage_key(document_id: str, stage: str) -> str:
    """Return the key of a stage's output."""
    return f"intermediate/{document_id}/{stage}/output.json"


def page_key(document_id: str, stage: str, number: int) -> str:
    """Return the key of a page's output, for stages that work page by page."""
    return f"intermediate/{document_id}/{stage}/pages/{number}.json"


def result_key(document_id: str) -> str:
    """Return the key of a finished document's result."""
    return f"results/{document_id}/result.json"


def figures_key(document_id: str) -> str:
    """Return the key of the list of a document's figures."""
    return f"results/{document_id}/figures.json"


def figure_folder(document_id: str) -> str:
    """Return the folder of a document's pictures of figures."""
    return f"results/{document_id}/figures"


def figure_key(document_id: str, sha256: str, suffix: str) -> str:
    """Return the key of a figure's picture: by its content, so that a list of figures never names
    another document's picture."""
    return f"{figure_folder(document_id)}/{sha256[:32]}.{suffix}"


def references_key(document_id: str) -> str:
    """Return the key of a document's references."""
    return f"results/{document_id}/references.json"


def links_key(document_id: str) -> str:
    """Return the key of the works that a document's references are linked to."""
    return f"results/{document_id}/links.json"


def job_folder(job_id: str) -> str:
    """Return the part of a key that replaces a document's id where there is no document."""
    return f"jobs/{job_id}"


def extraction_key(job_id: str) -> str:
    """Return the key of the result of a job without a document. It differs from a document's: the
    caller that publishes a job chooses its id, which may be that of a document."""
    return f"results/jobs/{job_id}/result.json"


def raw_answers_key(job_id: str) -> str:
    """Return the key of the answers of a model to a job that do not match its schema."""
    return f"results/jobs/{job_id}/raw.json"


def content_hash(value: Any) -> str:
    """Return the SHA-256, in hexadecimal, of bytes or of a JSON value in its canonical form."""
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
