"""Store uploaded documents: limit their size, check their content, and store each under its own
id."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from switchyard.services.common.errors import PermanentError
from switchyard.services.common.file_errors import describe_read_error
from switchyard.services.common.files.charset_choice import convert_to_utf8
from switchyard.services.common.files.charsets import Charset
from switchyard.services.common.files.errors import (
    DocumentTooLarge,
    FileTooLarge,
    NotStored,
    UnsupportedDocument,
)
from switchyard.services.common.files.media_types import (
    MAX_DOCUMENT_BYTES,
    SNIFF_BYTES,
    charset_to_read,
    media_type_of,
    refuse_false_pdf,
    refuse_unsupported,
)
from switchyard.services.common.files.storage import Storage
from switchyard.services.common.files.storage_keys import content_hash

INCOMING = "uploads/incoming/"
"""Prefix of the keys of uploads that wait for their job."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that was received and waits under `key` for `ingest_document`."""

    key: str
    size: int
    """Bytes."""
    sha256: str

    @property
    def vouched(self) -> dict[str, str]:
        """Local-only fields that the payload of its job may have, with their values."""
        return {"key": self.key}


async def receive(
    storage: Storage,
    parts: AsyncIterable[bytes],
    filename: Callable[[], str | None] = lambda: None,
    charset: Callable[[], Charset | None] = lambda: None,
    *,
    max_bytes: int = MAX_DOCUMENT_BYTES,
) -> Upload:
    """Store an upload as it comes in; a file that is no document is refused by its first bytes.
    `charset` returns the charset that the sender declares for a text, which is stored in UTF-8.

    For the API: the key goes into the payload of `ingest_document`. Uploads that no job uses are
    removed by age, like everything below INCOMING. Raises UnsupportedDocument, DocumentTooLarge,
    and whatever `parts` raises; nothing is kept then.
    """
    key = f"{INCOMING}{uuid4()}"
    try:
        received = await storage.put_stream_async(
            key,
            _sniff(convert_to_utf8(parts, lambda head: charset_to_read(head, charset())), filename),
            max_bytes=max_bytes,
        )
    except UnicodeDecodeError as error:
        raise UnsupportedDocument(
            f"not text in the charset that it is declared to be in: {error.reason}"
        ) from error
    except FileTooLarge as error:
        raise DocumentTooLarge(f"the file has {error}") from error
    return Upload(key, received.size, received.sha256)


async def _sniff(
    parts: AsyncIterable[bytes], filename: Callable[[], str | None]
) -> AsyncIterator[bytes]:
    """Yield the bytes unchanged, and check the first ones, of which enough are joined for that."""
    head = b""
    checked = False
    async for part in parts:
        if checked:
            yield part
            continue
        head += part
        if len(head) >= SNIFF_BYTES:
            refuse_unsupported(head)
            refuse_false_pdf(head, filename())
            checked = True
            yield head
    if not checked:
        refuse_unsupported(head)
        refuse_false_pdf(head, filename())
        yield head


async def read_upload(storage: Storage, key: str, *, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
    """Return an uploaded file. Raises PermanentError (it is gone), DocumentTooLarge."""
    try:
        return await storage.get_async(key, max_bytes=max_bytes)
    except NotStored as error:
        raise PermanentError(f"the upload {key!r} is gone: send the file again") from error
    except FileTooLarge as error:
        raise DocumentTooLarge(f"the file has {error}") from error


def read_path(
    path: str, *, max_bytes: int = MAX_DOCUMENT_BYTES, below: Sequence[Path] | None = None
) -> bytes:
    """Read a file on this machine; with `below`, only from these directories, whatever links say.

    Raises PermanentError, DocumentTooLarge.
    """
    try:
        file = Path(path).resolve()
        if below is not None and not any(file.is_relative_to(each.resolve()) for each in below):
            raise PermanentError(f"{path!r} is outside of the directories of JOBS_INGEST_PATHS")
        if not file.is_file():  # a pipe or a device would never end
            raise PermanentError(f"there is no file {path!r} on this worker's machine")
        with file.open("rb") as stream:
            data = stream.read(max_bytes + 1)
    except OSError as error:
        raise PermanentError(describe_read_error(path, error)) from error
    except RuntimeError as error:  # of `resolve`
        raise PermanentError(f"{path!r} can't be read: its links lead in a circle") from error
    except ValueError as error:  # a NUL in the name
        raise PermanentError(f"{path!r} is not a file name") from error
    if len(data) > max_bytes:
        raise DocumentTooLarge(f"the file has more than the {max_bytes:,} bytes allowed")
    return data


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """Type and hash of a file, by its content and not by its name."""

    sha256: str
    media_type: str
    size: int
    """Bytes."""


def identify(data: bytes, filename: str | None) -> FileIdentity:
    """Return the media type and hash of a file by its content. Raises UnsupportedDocument."""
    return FileIdentity(content_hash(data), media_type_of(data, filename), len(data))
