"""A file's type follows from its content, whatever its name."""

from __future__ import annotations

import codecs

import pytest

from switchyard.services.common.files.errors import UnsupportedDocument
from switchyard.services.common.files.media_types import (
    JPEG,
    MARKDOWN,
    PDF,
    PLAIN_TEXT,
    PNG,
    SNIFF_BYTES,
    TIFF,
    WEBP,
    media_type_of,
)
from tests.support.hostile_pdfs import not_pdfs


@pytest.mark.parametrize(
    ("data", "filename", "expected"),
    [
        (b"%PDF-1.7\n...", "paper.pdf", PDF),
        (b"%PDF-1.7\n...", "paper.txt", PDF),
        (b"junk before\n%PDF-1.4", None, PDF),
        (b"\x89PNG\r\n\x1a\n...", "scan.txt", PNG),
        (b"\xff\xd8\xff\xe0...", None, JPEG),
        (b"II*\x00...", "a.tif", TIFF),
        (b"MM\x00*...", "a.tif", TIFF),
        (b"II+\x00...", "big.tif", TIFF),
        (b"MM\x00+...", "big.tif", TIFF),
        (b"RIFF\x10\x00\x00\x00WEBPVP8 ", None, WEBP),
        (b"Hello", None, PLAIN_TEXT),
        (b"Hello", "paper.txt", PLAIN_TEXT),
        (b"# Title", "README.MD", MARKDOWN),
        (b"<br/>Notice\n%PDF-1.4", None, PDF),
        (b"<html>Notice</html>\n%PDF-1.4", None, PDF),
        (b"%!PS-Adobe-3.0 PDF-1.2\n1 0 obj\n\0", None, PDF),
        (b"BMW builds cars.", None, PLAIN_TEXT),
        (b"MZ is a postal code.", None, PLAIN_TEXT),
        ("Grüße".encode(), "a.txt", PLAIN_TEXT),
        ("\ufeffGrüße".encode(), "a.txt", PLAIN_TEXT),
        ("Grüße".encode("utf-16"), "a.txt", PLAIN_TEXT),
        (b"x" * (SNIFF_BYTES - 1) + "ü".encode() + b"x", None, PLAIN_TEXT),
    ],
)
def test_type_follows_from_the_content(data: bytes, filename: str | None, expected: str):
    assert media_type_of(data, filename) == expected


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"PK\x03\x04rest", "ZIP"),
        (b"\x89PNG\n\x1a\n", "PNG"),
        (b"\x89PNG\r\n\x1a\n", "no PDF"),
        (b"\xff\xd8\xff\xe0", "no PDF"),
        (b"GIF89a", "GIF"),
        (b"{\\rtf1 text}", "Rich Text"),
        (b"  <!DOCTYPE HTML><html>", "HTML"),
        (b"<html lang=en>", "HTML"),
        (b"\x00\x01\x02\x03", "binary"),
        (b"text with a \x00 in it", "binary"),
        (b"\xfc\xfd\xfe not UTF-8", "save text as UTF-8"),
        (b"good " * 2000 + b"\xff", "byte 10,000 .*save text as UTF-8"),
        (b"not a pdf at all\n", "no PDF"),
        (b"BM\x36\x00\x00", "bitmap"),
        (b"MZ\x90\x00\x03", "program"),
        (b"PK\x03\x04a stored paper.pdf\n%PDF-1.4", "ZIP"),
        (b"<html><p>A PDF begins with %PDF-1.4</p></html>", "HTML"),
        (codecs.BOM_UTF8 + b"<html>", "HTML"),
        *((data, name) for name, data in not_pdfs().items() if name in ("GIF", "HTML", "SVG")),
        *((data, "ZIP") for name, data in not_pdfs().items() if name in ("EPUB", "CBZ")),
        (not_pdfs()["FB2"], "XML"),
    ],
)
def test_anything_else_is_refused_and_named(data: bytes, reason: str):
    with pytest.raises(UnsupportedDocument, match=reason):
        media_type_of(data, "paper.pdf")
