"""Tell the type of a file by its content: names and content types are only claims."""

from __future__ import annotations

import codecs
import re

from switchyard.services.common.files.charsets import (
    BEGINNING_BYTES,
    UTF_8,
    Charset,
    bom_or_utf16_charset,
    decode,
)
from switchyard.services.common.files.errors import UnsupportedDocument

PDF = "application/pdf"
MARKDOWN = "text/markdown"
PLAIN_TEXT = "text/plain"
PNG = "image/png"
JPEG = "image/jpeg"
TIFF = "image/tiff"
WEBP = "image/webp"
IMAGES = frozenset({PNG, JPEG, TIFF, WEBP})
"""Images, whose text only OCR reads."""

MAX_DOCUMENT_BYTES = 100 * 1024 * 1024
"""Bytes of the largest file that is accepted."""

SNIFF_BYTES = BEGINNING_BYTES
"""Bytes of a file's beginning that `refuse_unsupported` needs."""

_HEADER_WITHIN = 1024
"""Most bytes before `%PDF-` that every reader tolerates."""
_PDF_BODY = re.compile(rb"(?:^|[\r\n])\d{1,10} \d{1,5} obj\b")
"""The beginning of an object of a PDF, by which a PDF is recognised that has lost its `%PDF-`."""

_PDF_LINE = re.compile(rb"(?:^|[\r\n])%(?:PDF-|!PS-Adobe-\d\.\d PDF-)")
"""A PDF's first line; the second form was allowed in the nineties."""

_BINARY = (
    (b"PK\x03\x04", "a ZIP archive or an Office document"),
    (b"PK\x05\x06", "an empty ZIP archive"),
    (b"GIF87a", "a GIF image"),
    (b"GIF89a", "a GIF image"),
    (b"\x89PNG", "a PNG image that is broken"),
    (b"\x1f\x8b", "a gzip file"),
    (b"\xd0\xcf\x11\xe0", "an old Office document"),
    (b"\x7fELF", "a program"),
)
"""Unsupported formats by their first bytes, whatever follows in the file."""
_SHORT = ((b"BM", "a bitmap"), (b"MZ", "a program"))
"""Unsupported formats by their first two letters; a text may begin with these as well."""
_TEXTUAL = (
    (b"{\\rtf", "a Rich Text document"),
    (b"%!PS", "a PostScript file"),
    (b"<!doctype html", "an HTML page"),
    (b"<html", "an HTML page"),
    (b"<?xml", "an XML file"),
    (b"<svg", "an SVG image"),
)
"""Unsupported formats that are text; a server may have put such text before a PDF."""

_IMAGE_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", PNG),
    (b"\xff\xd8\xff", JPEG),
    (b"II*\x00", TIFF),
    (b"MM\x00*", TIFF),
    (b"II+\x00", TIFF),  # BigTIFF, of scanners
    (b"MM\x00+", TIFF),
)

SUPPORTED_TYPES = "only PDF, images (PNG, JPEG, TIFF, WebP), plain text and Markdown are taken"
_SAVE_ANEW = "save text as UTF-8, and send it again"
_TEXT_CONTROLS = frozenset(b"\t\n\r\x0c\x1b")


def refuse_unsupported(head: bytes) -> None:
    """Check the beginning of a file, at least SNIFF_BYTES of it or all there is.

    Raises UnsupportedDocument. A file that passes can still be broken further on.
    """
    if not head:
        raise UnsupportedDocument("the file is empty")
    if _image_type(head) is not None:
        return
    other = _other_format(head)
    if other is not None:
        raise UnsupportedDocument(f"{other}: {SUPPORTED_TYPES}")
    if _is_pdf(head) or _has_pdf_body(head):
        return
    utf_charset = bom_or_utf16_charset(head)
    if utf_charset is None and _has_controls(head):
        raise UnsupportedDocument(f"binary data: {SUPPORTED_TYPES}")
    try:  # not final: the last character may be cut in the middle
        (utf_charset or UTF_8).decoder("strict")(head, False)
    except UnicodeDecodeError as error:
        raise UnsupportedDocument(
            f"neither a PDF nor text in UTF-8 or UTF-16: {_SAVE_ANEW}"
        ) from error


def refuse_false_pdf(head: bytes, filename: str | None) -> None:
    """Check the beginning of a file whose name ends in .pdf: if it is text, it is often the error
    page of a failed download. Raises UnsupportedDocument."""
    if _is_named_pdf(filename) and not (_is_pdf(head) or _has_pdf_body(head)):
        raise UnsupportedDocument("its name ends in .pdf, but it is no PDF")


def media_type_of(data: bytes, filename: str | None = None) -> str:
    """Return the type of a whole file by its content: `application/pdf`, one of IMAGES,
    `text/markdown` or `text/plain`.

    The name only tells Markdown from other text, and what was meant to be a PDF. Raises
    UnsupportedDocument.
    """
    refuse_unsupported(data[:SNIFF_BYTES])
    image = _image_type(data)
    if image is not None:
        refuse_false_pdf(data, filename)
        return image
    if _is_pdf(data):
        return PDF
    # A PDF without its first line is known by its objects; a text may contain such a line, too.
    if _has_pdf_body(data) and (_is_named_pdf(filename) or not _is_text(data)):
        return PDF
    decode_text(data)
    refuse_false_pdf(data, filename)
    markdown = filename is not None and filename.lower().endswith((".md", ".markdown"))
    return MARKDOWN if markdown else PLAIN_TEXT


def _other_format(head: bytes) -> str | None:
    """Return the name of an unsupported format that a file begins with. It may also contain a PDF's
    objects: readers would disagree on which of the two it is."""
    start = head.removeprefix(codecs.BOM_UTF8).lstrip()[:16].lower()
    for magics, beginning in (
        (_BINARY, head),
        (_SHORT, head if _has_controls(head) else b""),
        (_TEXTUAL, start if _PDF_LINE.search(head[:_HEADER_WITHIN]) is None else b""),
    ):
        for magic, name in magics:
            if beginning.startswith(magic):
                return name
    return None


def _has_controls(head: bytes) -> bool:
    return any(byte < 32 and byte not in _TEXT_CONTROLS for byte in head)


def _image_type(head: bytes) -> str | None:
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return WEBP
    return next((media_type for magic, media_type in _IMAGE_MAGIC if head.startswith(magic)), None)


def _is_pdf(head: bytes) -> bool:
    return b"%PDF-" in head[:_HEADER_WITHIN]


def _has_pdf_body(head: bytes) -> bool:
    return _PDF_BODY.search(head[:_HEADER_WITHIN]) is not None


def _is_named_pdf(filename: str | None) -> bool:
    return (filename or "").lower().endswith(".pdf")


def _is_text(data: bytes) -> bool:
    try:
        return "\0" not in decode_text(data)
    except UnsupportedDocument:
        return False


def decode_text(data: bytes) -> str:
    """Decode the text of a text file. Raises UnsupportedDocument."""
    try:
        return (bom_or_utf16_charset(data) or UTF_8).decode(data, "strict")
    except UnicodeDecodeError as error:
        raise UnsupportedDocument(
            f"not text in UTF-8 or UTF-16, as byte {error.start:,} does not fit: {_SAVE_ANEW}"
        ) from error


def charset_to_read(head: bytes, declared: Charset | None) -> Charset | None:
    """Return the declared charset where it decides how a file is read, by the
    file's first SNIFF_BYTES. None where the file itself shows what it is: a PDF, an image, a text
    with a byte order mark or in UTF-16."""
    is_shown = (
        bom_or_utf16_charset(head) is not None
        or _image_type(head) is not None
        or _is_pdf(head)
        or _has_pdf_body(head)
        or any(head.startswith(magic) for magic, _ in _BINARY)
    )
    return None if is_shown else declared


def text_as_utf8(data: bytes, declared: Charset | None) -> bytes:
    """Convert a file to UTF-8 if it is text in the charset that its sender declares; else return it
    unchanged."""
    charset = charset_to_read(data[:SNIFF_BYTES], declared)
    return data if charset in (None, UTF_8) else decode(data, charset).encode()
