"""Why a document can't be taken in; no further attempt helps.

PermanentError
├── UnsupportedDocument   neither a PDF, an image, plain text nor Markdown
├── CorruptDocument       cut off, damaged, or without any content
├── EncryptedDocument     a password is needed
└── DocumentTooLarge      more bytes, pages, pixels or characters than are allowed

They are types of their own so that dead letters group by cause.
"""

from __future__ import annotations

from switchyard.services.common.errors import PermanentError


class UnsupportedDocument(PermanentError):
    """The file is nothing that is taken in; the text says what it looks like."""


class CorruptDocument(PermanentError):
    """The file claims to be a document and can't be read as one."""


class EncryptedDocument(PermanentError):
    """The file can't be read without a password."""


class DocumentTooLarge(PermanentError):
    """The file is beyond a limit; the text names it."""
