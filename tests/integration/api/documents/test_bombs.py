"""Small files that would grow huge."""

from __future__ import annotations

import asyncio
import zlib

import httpx
import pymupdf
import pytest

from tests.integration.api.document_server import send
from tests.support.pdfs import pdf


def compress_repeated(block: bytes, times: int, begin: bytes = b"") -> bytes:
    """Return a zlib stream of the block, repeated; the block is compressed once."""
    packer = zlib.compressobj(9)
    packed = packer.compress(begin) + packer.flush(zlib.Z_FULL_FLUSH)
    packed += (packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)) * times
    checksum = zlib.adler32(begin)
    for _ in range(times):
        checksum = zlib.adler32(block, checksum)
    return packed + b"\x03\x00" + checksum.to_bytes(4, "big")  # an empty last block


def page_of(content: bytes, resources: bytes, *further_objects: bytes) -> bytes:
    """Return a PDF of one page with this compressed content, and further objects from number 5."""
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 200]/Contents 4 0 R/Resources<<%b>>>>"
        % resources,
        stream(b"", content),
        *further_objects,
    ]
    data, offsets = b"%PDF-1.5\n", []
    for number, each in enumerate(objects, start=1):
        offsets.append(len(data))
        data += b"%d 0 obj\n%b\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    start, count = len(data), len(objects) + 1
    data += b"xref\n0 %d\n0000000000 65535 f \n" % count + table
    return data + b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % (count, start)


def stream(entries: bytes, packed: bytes) -> bytes:
    head = b"<<%b/Filter/FlateDecode/Length %d>>stream\n" % (entries, len(packed))
    return head + packed + b"\nendstream"


def huge_image() -> bytes:
    """Return an image of 20,000 by 20,000 pixels, compressed into some hundred kilobytes."""
    entries = b"/Type/XObject/Subtype/Image/Width 20000/Height 20000/ColorSpace/DeviceGray"
    image = stream(entries + b"/BitsPerComponent 8", compress_repeated(b"\xc8" * 1_000_000, 400))
    content = zlib.compress(b"q 150 0 0 150 20 20 cm /I Do Q")
    return page_of(content, b"/XObject<</I 5 0 R>>", image)


def many_pages() -> bytes:
    document = pymupdf.open()
    for _ in range(2_001):
        document.new_page(width=20, height=20)
    return bytes(document.tobytes(no_new_id=True))


def bloated_text() -> bytes:
    """Return a small file with a page whose content is 300 MB of blanks and some letters."""
    letters = b"BT /F1 12 Tf 10 10 Td (hello there) Tj ET\n"
    font = b"/Font<</F1<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>"
    return page_of(compress_repeated(b" " * 1_000_000, 300, letters), font)


@pytest.mark.parametrize("bomb", [huge_image, many_pages, bloated_text])
async def test_a_small_file_that_would_grow_huge_does_no_harm(client: httpx.AsyncClient, bomb):
    content = bomb()
    assert len(content) < 2_000_000
    answer, listing = await asyncio.gather(send(client, content), client.get("/documents"))
    assert listing.status_code == 200
    if bomb is bloated_text:
        assert answer.status_code in (201, 422), answer.text
    else:
        assert answer.status_code == 422
        assert answer.json()["error_type"] == "DocumentTooLarge"
    assert (await send(client, pdf([f"After {bomb.__name__}."]))).status_code == 201
