"""PDFs that are made to do harm, the same ones for the same seed.

Small PDFs, damaged as by transmission or on purpose, and a few that would need more memory or time
than there is.
"""

from __future__ import annotations

import io
import random
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pymupdf
from PIL import Image

from tests.support.pdfs import TEXT, encrypted, pdf, scanned

Mutation = Callable[[bytes, random.Random], bytes]


def _flipped(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 10, 100, 1000))):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(10, len(data))]


def _hollowed(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data))
    return data[:start] + data[start + rng.randrange(1, 2_000) :]


def _shuffled(data: bytes, rng: random.Random) -> bytes:
    size = rng.randrange(16, 1_024)
    parts = [data[start : start + size] for start in range(0, len(data), size)]
    rng.shuffle(parts)
    return b"%PDF-1.7\n" + b"".join(parts)


def _doubled(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data))
    return data[:start] + data[start : start + 5_000] * rng.randrange(2, 200) + data[start:]


def _renumbered(data: bytes, rng: random.Random) -> bytes:
    """Replace some numbers by unusual ones."""
    unusual_numbers = (b"0", b"-1", b"2147483648", b"99999999999999999999", b"1e400", b"4294967295")

    def replace_match(match: re.Match[bytes]) -> bytes:
        return rng.choice(unusual_numbers) if rng.random() < 0.05 else match.group()

    return re.sub(rb"\b\d+\b", replace_match, data)


def _crossed(data: bytes, rng: random.Random) -> bytes:
    """Let references lead to other objects, and so in circles."""

    def replace_match(match: re.Match[bytes]) -> bytes:
        return b"%d 0 R" % rng.randrange(1, 20) if rng.random() < 0.3 else match.group()

    return re.sub(rb"\b\d+ 0 R\b", replace_match, data)


def _wrapped(data: bytes, rng: random.Random) -> bytes:
    junk = rng.randbytes(rng.randrange(1, 900))
    return junk + data + rng.randbytes(rng.randrange(1, 300_000))


MUTATIONS: tuple[Mutation, ...] = (
    _flipped,
    _cut,
    _hollowed,
    _shuffled,
    _doubled,
    _renumbered,
    _crossed,
    _wrapped,
)


def nested_forms(depth: int = 24, width: int = 4) -> bytes:
    """Make a PDF of forms that each draw the next several times: a few kilobytes that draw 4**24
    words."""
    forms = [
        _stream(
            4 + level,
            b"/Type/XObject/Subtype/Form/BBox[0 0 600 800]/Resources<</XObject<</F %d 0 R>>"
            b"/Font<</H 3 0 R>>>>" % (5 + level),
            b"/F Do " * width,
        )
        for level in range(depth)
    ]
    last = _stream(
        4 + depth,
        b"/Type/XObject/Subtype/Form/BBox[0 0 600 800]/Resources<</Font<</H 3 0 R>>>>",
        b"BT /H 9 Tf (word) Tj ET",
    )
    return _whole_file(b"4 0 R", [*forms, last])


def nested_fonts(depth: int = 15_000) -> bytes:
    """Make Type 3 fonts of which each draws its letter with the next one."""
    fonts = []
    for xref in range(1_000, 1_000 + 2 * depth, 2):
        resources = (
            b"/Resources<</Font<</H %d 0 R>>>>" % (xref + 2) if xref < 998 + 2 * depth else b""
        )
        fonts.append(
            b"%d 0 obj\n<</Type/Font/Subtype/Type3/FontBBox[0 0 1 1]/FontMatrix[1 0 0 1 0 0]"
            b"/FirstChar 97/LastChar 97/Widths[1]/Encoding<</Differences[97/a]>>"
            b"/CharProcs<</a %d 0 R>>%b>>\nendobj\n" % (xref, xref + 1, resources)
        )
        fonts.append(_stream(xref + 1, b"", b"1 0 d0 BT /H 1 Tf (a) Tj ET"))
    form = b"/Type/XObject/Subtype/Form/BBox[0 0 600 800]/Resources<</Font<</H 1000 0 R>>>>"
    return _whole_file(b"4 0 R", [_stream(4, form, b"BT /H 9 Tf (a) Tj ET"), *fonts])


def with_a_costly_page(kind: str) -> bytes:
    """Make three pages of text, of which the second would be drawn for years: by forms, patterns or
    letters that are drawn with each other. See COSTLY_PAGES."""
    document = pymupdf.open(stream=pdf([f"{TEXT} Page {number}." for number in (1, 2, 3)]))
    dictionary, content, resources, drawing = COSTLY_PAGES[kind]
    inner = b"0 0 10 10 re f"
    level_resources = ""
    for _ in range(12):
        xref = document.get_new_xref()
        if kind == "fonts":
            document.update_object(xref, "<<>>")
            document.update_stream(xref, b"1000 0 d0 " + inner)
            letter, xref = xref, document.get_new_xref()
            document.update_object(
                xref,
                f"<<{dictionary}/CharProcs<</a {letter} 0 R>>/Resources<<{level_resources}>>>>",
            )
        else:
            document.update_object(xref, f"<<{dictionary}/Resources<<{level_resources}>>>>")
            document.update_stream(xref, inner)
        level_resources, inner = resources % xref, content
    page = document[1]
    own_font = document.xref_get_key(page.xref, "Resources/Font")[1]
    fonts = f"/Font{own_font}" if kind != "fonts" else ""
    text_content = b"" if kind == "fonts" else page.read_contents()
    document.xref_set_key(page.xref, "Resources", f"<<{fonts}{level_resources}>>")
    document.update_stream(page.get_contents()[0], text_content + b" q " + drawing + b" Q")
    return bytes(document.tobytes(no_new_id=True))


class CostlyPage(NamedTuple):
    """A page that is drawn by levels of objects, each of which draws the one below it."""

    dictionary: str
    """What each level is."""
    content: bytes
    """What it draws."""
    resources: str
    """How the level below it is named there."""
    drawing: bytes
    """What the page draws."""


COSTLY_PAGES = {
    "forms": CostlyPage(
        "/Type/XObject/Subtype/Form/BBox[0 0 600 800]",
        b"/X Do " * 10,
        "/XObject<</X %d 0 R>>",
        b"/X Do",
    ),
    "fonts": CostlyPage(
        (
            "/Type/Font/Subtype/Type3/FontBBox[0 0 1000 1000]/FontMatrix[.001 0 0 .001 0 0]"
            "/FirstChar 97/LastChar 97/Widths[1000]/Encoding<</Differences[97/a]>>"
        ),
        b"BT /N 1000 Tf (aaaaaaaaaa) Tj ET",
        "/Font<</N %d 0 R>>",
        b"BT /N 300 Tf 50 400 Td (aaaaaaaaaa) Tj ET",
    ),
    "patterns": CostlyPage(
        "/Type/Pattern/PatternType 1/PaintType 1/TilingType 1/BBox[0 0 9 9]/XStep .3/YStep .3",
        b"/Pattern cs /P scn 0 0 9 9 re f " * 9,
        "/Pattern<</P %d 0 R>>",
        b"/Pattern cs /P scn 0 0 600 800 re f",
    ),
}


def bomb(megabytes: int = 300) -> bytes:
    """Make a page of text that unpacks to more than there is memory."""
    packer = zlib.compressobj(1)
    part = b"BT /H 9 Tf (word word word) Tj ET\n" * 30_000
    packed = b"".join(packer.compress(part) for _ in range(megabytes)) + packer.flush()
    form = b"/Type/XObject/Subtype/Form/BBox[0 0 600 800]/Filter/FlateDecode"
    fonts = b"/Resources<</Font<</H 3 0 R>>>>"
    return _whole_file(b"4 0 R", [_stream(4, form + fonts, packed)])


def deep_outline(depth: int = 100_000) -> bytes:
    """Make an outline of which each entry is a child of the one before, and points to a name
    that is found at the end of a name tree as deep."""
    last = 10 + 2 * depth
    entries = [
        b"%d 0 obj\n<</Title(Entry)/Parent %d 0 R/First %d 0 R/Dest(there)>>\nendobj\n"
        % (number, number - 2, number + 2)
        for number in range(10, last, 2)
    ]
    names = [
        b"%d 0 obj\n<</Kids[%d 0 R]>>\nendobj\n" % (number, number + 2)
        for number in range(11, last, 2)
    ]
    leaf = b"%d 0 obj\n<</Names[(there)[998001 0 R/Fit]]>>\nendobj\n" % (last + 1)
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents 998002 0 R/Resources<<>>>>"
    return b"".join(
        (
            b"%PDF-1.7\n1 0 obj\n<</Type/Catalog/Pages 2 0 R/Outlines 8 0 R",
            b"/Names<</Dests 11 0 R>>>>\nendobj\n8 0 obj\n<</First 10 0 R>>\nendobj\n",
            b"2 0 obj\n<</Type/Pages/Count 1/Kids[998001 0 R]>>\nendobj\n",
            *entries,
            *names,
            leaf,
            b"998001 0 obj\n" + page + b"\nendobj\n",
            _stream(998002, b"", b"BT /H 9 Tf (word) Tj ET"),
            b"trailer\n<</Root 1 0 R>>\nstartxref\n0\n%%EOF\n",
        )
    )


def not_pdfs() -> dict[str, bytes]:
    """Make files of formats that MuPDF opens as well, each with a PDF's object in its beginning."""
    page = b"<html><body><p>\n1 0 obj\n</p>%s</body></html>" % (b"<p>The tide rises.</p>" * 2_000)
    container = (
        b'<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
        b'<rootfile full-path="a.opf" media-type="application/oebps-package+xml"/></rootfiles>'
        b"</container>"
    )
    book = (
        b'<package xmlns="http://www.idpf.org/2007/opf" version="2.0"><manifest><item id="a" '
        b'href="a.html" media-type="application/xhtml+xml"/></manifest><spine><itemref idref="a"/>'
        b"</spine></package>"
    )
    picture = io.BytesIO()
    Image.new("L", (9, 9)).save(picture, "PNG")
    gif = io.BytesIO()
    Image.new("L", (9, 9)).save(gif, "GIF", comment=b"\n1 0 obj\n")
    return {
        "EPUB": _archive(
            {
                "mimetype": b"application/epub+zip",
                "note": b"\n1 0 obj\n",
                "META-INF/container.xml": container,
                "a.opf": book,
                "a.html": page,
            }
        ),
        "CBZ": _archive({"note": b"\n1 0 obj\n", "1.png": picture.getvalue()}),
        "GIF": gif.getvalue(),
        "HTML": page,
        "SVG": b'<svg xmlns="http://www.w3.org/2000/svg" width="99" height="99">\n1 0 obj\n</svg>',
        "FB2": (
            b'<?xml version="1.0"?>\n<FictionBook xmlns="http://www.gribuser.ru/xml/fictionbook/2.0">'
            b"<body><section><p>\n1 0 obj\n</p></section></body></FictionBook>"
        ),
    }


def _archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def _stream(number: int, dictionary: bytes, content: bytes) -> bytes:
    head = b"%d 0 obj\n<<%s/Length %d>>\nstream\n" % (number, dictionary, len(content))
    return head + content + b"\nendstream\nendobj\n"


def _whole_file(form_reference: bytes, objects: list[bytes]) -> bytes:
    page = (
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents 999 0 R"
        b"/Resources<</XObject<</F %s>>>>>>" % form_reference
    )
    return b"".join(
        (
            b"%PDF-1.7\n1 0 obj\n<</Type/Catalog/Pages 2 0 R>>\nendobj\n",
            b"2 0 obj\n<</Type/Pages/Count 1/Kids[998 0 R]>>\nendobj\n",
            b"3 0 obj\n<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>\nendobj\n",
            *objects,
            b"998 0 obj\n" + page + b"\nendobj\n",
            _stream(999, b"", b"/F Do"),
            b"trailer\n<</Root 1 0 R/Size 1000>>\nstartxref\n0\n%%EOF\n",
        )
    )


def hostile_pdfs(count: int, seed: int = 1) -> Iterator[tuple[str, bytes]]:
    """Yield that many hostile PDFs, each with a name that tells how it was made."""
    bases = {
        "plain": pdf([TEXT] * 5),
        "packed": pdf([TEXT] * 5, deflate=True, use_objstms=1),
        "scanned": scanned(),
        "encrypted": encrypted(""),
    }
    yield "nested forms", nested_forms()
    yield "bomb", bomb()
    yield "deep outline", deep_outline()
    for number in range(count - 3):
        rng = random.Random(f"{seed}/{number}")
        name = rng.choice(list(bases))
        mutation = MUTATIONS[number % len(MUTATIONS)]
        yield f"{number} {mutation.__name__} {name}", mutation(bases[name], rng)
