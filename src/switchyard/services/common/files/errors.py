"""Errors of documents that can't be ingested, where no further attempt helps, and of file storage.

PermanentError
├── UnsupportedDocument   neither a PDF, an image, plain text nor Markdown
├── CorruptDocument       cut off, damaged, or without any content
│   └── PageTooCostly     one page takes too long to be read or drawn
├── EncryptedDocument     a password is needed
└── DocumentTooLarge      more bytes, pages, pixels or characters than allowed

Each has a class of its own, so that dead letters are grouped by cause. The other errors are those
of the file storage, for every kind of store.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC

from switchyard.services.common.errors import (
    DependencyUnavailable,
    InvalidInput,
    NotFoundError,
    PermanentError,
    SwitchyardError,
    TemporarilyUnavailable,
)


class UnsupportedDocument(PermanentError):
    """The file has an unsupported format; the text says which it seems to be."""


class CorruptDocument(PermanentError):
    """The file claims to be a document and can't be read as one."""


class PageTooCostly(CorruptDocument):
    """A page takes more processor time than is allowed for one; the other pages can be read."""


class EncryptedDocument(PermanentError):
    """The file can't be read without a password."""


class DocumentTooLarge(PermanentError):
    """The file is beyond a limit; the text names it."""


class StorageError(SwitchyardError):
    """Base of the errors of the file storage."""


class InvalidKey(StorageError, InvalidInput):
    """The key could leave the storage or is not portable between stores."""


class NotStored(StorageError, NotFoundError):
    """There is no file under this key."""


class FileTooLarge(StorageError, InvalidInput):
    """The file is larger than the caller allows; nothing of it was kept."""


class DiskFull(StorageError, TemporarilyUnavailable):
    """The disk has no room for the file; nothing of it was kept."""


class StorageUnavailable(StorageError, DependencyUnavailable):
    """The object store does not answer, or answers with something else. The last write may or may
    not have been done. A job that raises this error uses up no attempt."""


class StorageAuthError(StorageUnavailable):
    """The object store does not let these credentials do what is asked, or has no such bucket.
    Waiting does not help: an operator has to act."""


_CODES = (
    re.compile(r"<Code>(\w{1,60})</Code>"),
    re.compile(r"\b([1-5]\d\d [A-Z][A-Za-z ]{1,30}):"),
)
"""Pattern of the code and the status that obstore quotes of a store's answer."""
_REFUSED = (
    *("401 Unauthorized:", "403 Forbidden:", "<Code>ExpiredToken<", "<Code>InvalidToken<"),
    *("status: 401", "status: 403"),  # as LanceDB quotes it
    *("lacked valid authentication", "lacked the necessary privileges"),
)
_NO_BUCKET = ("<Code>NoSuchBucket<", "<Code>ContainerNotFound<")


def is_without_bucket(error: Exception) -> bool:
    """Return whether the bucket itself is missing, and not only the file."""
    return any(each in str(error) for each in _NO_BUCKET)


def is_refusal(error: Exception) -> bool:
    """Return whether the store refuses access, so that waiting does not help."""
    return is_without_bucket(error) or any(each in str(error) for each in _REFUSED)


def describe_store_error(error: Exception) -> str:
    """Return the predicate of a sentence whose subject is the store, for an error that is not about
    one file."""
    text = str(error)
    if is_without_bucket(error):
        return "has no bucket or container there"
    code_text = next((match.group(1) for code in _CODES if (match := code.search(text))), None)
    if is_refusal(error):
        return "refuses access" + (f" ({code_text})" if code_text else "")
    return "does not answer" + (f" as it should ({code_text})" if code_text else "")


def unavailable_error(url: str, error: Exception) -> StorageUnavailable:
    """Return the error for an obstore error that is not about one file."""
    text = f"the file storage at {url} {describe_store_error(error)}"
    return StorageAuthError(text) if is_refusal(error) else StorageUnavailable(text)


DISK_FULL_TEXTS = ("os error 28)", "os error 122)")
"""ENOSPC and EDQUOT in the texts of libraries in Rust, which have no error class for them."""


@contextmanager
def mapping_disk_full() -> Iterator[None]:
    """Wrap code that writes files. Raises DiskFull where the disk is full."""
    try:
        yield
    except Exception as error:
        if getattr(error, "errno", None) in (ENOSPC, EDQUOT) or any(
            each in str(error) for each in DISK_FULL_TEXTS
        ):
            raise DiskFull("the disk of the file storage is full") from error
        raise
