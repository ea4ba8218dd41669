"""Small PDFs for tests, made on the spot."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pymupdf

TEXT = "The tide rises twice a day. The Moon pulls at the water of the ocean."


def pdf(pages: Sequence[str] = (TEXT,), *, title: str | None = None, **save_options: Any) -> bytes:
    """Make a PDF of one page for each text; an empty text makes an empty page."""
    document = pymupdf.open()
    for text in pages:
        page = document.new_page()
        if text:
            page.insert_textbox(pymupdf.Rect(50, 50, 545, 790), text, fontsize=11)
    document.set_metadata({"title": title} if title else {})
    return bytes(document.tobytes(no_new_id=True, **save_options))


def scanned(pages: int = 2, *, size: int = 40) -> bytes:
    """Return pages with an image of `size` by `size` pixels and no text."""
    document = pymupdf.open()
    for shade in range(pages):
        image = pymupdf.Pixmap(pymupdf.csGRAY, pymupdf.IRect(0, 0, size, size))
        image.clear_with(100 + shade)
        document.new_page().insert_image(pymupdf.Rect(50, 50, 500, 500), pixmap=image)
    return bytes(document.tobytes(no_new_id=True))


def encrypted(user_password: str, owner_password: str = "owner") -> bytes:
    """Encrypt a PDF; without a user password anybody may read it."""
    return pdf(
        encryption=pymupdf.mupdf.PDF_ENCRYPT_AES_256, user_pw=user_password, owner_pw=owner_password
    )


def attachments_encrypted(filters: str) -> bytes:
    """Make a PDF whose attachments alone are encrypted; `filters` says which filter is used for
    what."""
    with pymupdf.open(stream=encrypted("secret"), filetype="pdf") as locked:
        dictionary = locked.xref_get_key(-1, "Encrypt")[1]
    dictionary = re.sub(r"/(?:StmF|StrF|EFF)\s*/\w+", "", dictionary).rstrip().removesuffix(">>")
    with pymupdf.open(stream=pdf(), filetype="pdf") as opened:
        xref = opened.get_new_xref()
        opened.update_object(xref, f"{dictionary}{filters}>>")
        plain = bytes(opened.tobytes(no_new_id=True))
    trailer_start = plain.rindex(b"trailer")
    trailer = plain[trailer_start:].replace(b"<<", b"<</Encrypt %d 0 R/ID[<00><00>]" % xref, 1)
    return plain[:trailer_start] + trailer


def drawn(content: bytes, resources: str = "", about: str = "") -> bytes:
    """Return a page with that content stream; `about` are further about of its dictionary."""
    with pymupdf.open() as document:
        page = document.new_page()
        xref = document.get_new_xref()
        document.update_object(xref, "<<>>")
        document.update_stream(xref, content, compress=False)
        if about:
            name, value = about[1:].split("/", 1)
            document.xref_set_key(xref, name, f"/{value}")
        document.xref_set_key(page.xref, "Contents", f"{xref} 0 R")
        document.xref_set_key(page.xref, "Resources", f"<<{resources}>>")
        return bytes(document.tobytes(no_new_id=True))


def sized(width: float, height: float) -> bytes:
    """Return one page of that size, in points."""
    document = pymupdf.open()
    document.new_page(width=width, height=height).insert_text((20, 20), "hello there")
    return bytes(document.tobytes(no_new_id=True))


def scan(document: bytes, dpi: int = 150) -> bytes:
    """Return the same pages as pictures alone, as a scanner makes them."""
    new_document = pymupdf.open()
    with pymupdf.open(stream=document, filetype="pdf") as opened:
        for page in opened:
            picture = page.get_pixmap(dpi=dpi).tobytes("png")
            new_document.new_page(width=page.rect.width, height=page.rect.height).insert_image(
                page.rect, stream=picture
            )
    return bytes(new_document.tobytes(no_new_id=True))


def slips(texts: Sequence[str]) -> bytes:
    """Return small pages, one for each text, that OCR reads fast."""
    document = pymupdf.open()
    for text in texts:
        page = document.new_page(width=220, height=220)  # narrower ones are drawn larger
        page.insert_textbox(pymupdf.Rect(10, 20, 210, 200), text, fontsize=12)
    return bytes(document.tobytes(no_new_id=True))


def lines_of_text(texts: Sequence[str], *, lines: int) -> bytes:
    """Make a page for each text: the text as its first paragraph, then the same lines on all pages.
    That makes thousands of pages in seconds."""
    document = pymupdf.open()
    for text in texts:
        document.new_page().insert_text((50, 120), [text, "", *[TEXT] * lines], fontsize=11)
    return bytes(document.tobytes(no_new_id=True))


def with_a_broken_page(pages: int = 3) -> bytes:
    """Make a PDF whose second page's object is a number instead of a dictionary."""
    data = pdf([f"{TEXT} Page {number}." for number in range(1, pages + 1)])
    objects = [match.start() for match in re.finditer(rb"/Type/Page/", data)]
    number = data.rindex(b"obj", 0, objects[1]) + len(b"obj\n")
    end = data.index(b"endobj", number)
    return data[:number] + b"7".ljust(end - number) + data[end:]
