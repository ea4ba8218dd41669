"""PDFs are read, or refused with a reason; none harms the process that asked."""

from __future__ import annotations

import random
import sys
import time
import zlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pymupdf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from switchyard.services.common.errors import PermanentError
from switchyard.services.common.files.errors import (
    CorruptDocument,
    DocumentTooLarge,
    EncryptedDocument,
)
from switchyard.services.common.files.media_types import (
    MARKDOWN,
    PDF,
    PLAIN_TEXT,
    SNIFF_BYTES,
    media_type_of,
    refuse_false_pdf,
    refuse_unsupported,
)
from switchyard.services.pipeline.samples.articles import samples
from switchyard.services.pipeline.text.extraction import extract
from switchyard.services.pipeline.text.mupdf import PyMuPDFNotInstalled, _reading
from switchyard.services.pipeline.text.pdf import ExtractorName, read_pdf
from switchyard.services.pipeline.text.pdf_pages import Limits, PdfText
from tests.support.hostile_pdfs import deep_outline, not_pdfs
from tests.support.pdfs import (
    TEXT,
    attachments_encrypted,
    drawn,
    encrypted,
    pdf,
    scanned,
    sized,
    with_a_broken_page,
)

UNDAMAGED_PDFS = {
    "sample": next(samples(1)).content,
    "object-streams": pdf([TEXT] * 5, deflate=True, use_objstms=1),
    "plain": pdf([TEXT] * 5),
}
PROCESS_TIMEOUT = 20
"""Seconds until a process that reads a PDF is killed."""


def test_text_is_read_page_by_page():
    pdf_text = read_pdf(pdf(["First page.", "", "Third page."]))
    assert [(page.number, page.text) for page in pdf_text.pages] == [
        (1, "First page."),
        (2, ""),
        (3, "Third page."),
    ]
    assert not pdf_text.needs_ocr
    assert not pdf_text.repaired


def test_a_documents_own_title_is_used_unless_it_is_junk():
    assert read_pdf(pdf(title="On Tides")).title == "On Tides"
    assert read_pdf(pdf(title="Microsoft Word - tides3.doc")).title is None


def test_page_numbers_are_not_text():
    document = pdf([f"{TEXT}"])
    assert "1" not in read_pdf(document).pages[0].text


def test_images_without_text_need_ocr():
    pdf_text = read_pdf(scanned())
    assert pdf_text.needs_ocr
    assert [page.text for page in pdf_text.pages] == ["", ""]


def test_one_page_of_text_is_enough_to_continue_without_ocr():
    output = extract(pdf([TEXT, ""]), "application/pdf", title=None, filename="a.pdf")
    assert not output["needs_ocr"]
    assert output["pages_without_text"] == [2]


@pytest.mark.parametrize("percent", range(0, 100, 10))
@pytest.mark.parametrize("name", UNDAMAGED_PDFS)
def test_a_truncated_pdf_is_refused_wherever_it_was_cut(
    name: str, percent: int, in_process: Callable[..., Any]
):
    data = UNDAMAGED_PDFS[name][: len(UNDAMAGED_PDFS[name]) * percent // 100]
    error = in_process(read_pdf, data, timeout=PROCESS_TIMEOUT)
    assert isinstance(error, CorruptDocument)
    assert any(word in str(error) for word in ("truncated", "corrupt", "empty"))


@pytest.mark.parametrize("name", UNDAMAGED_PDFS)
def test_a_whole_pdf_is_read_in_a_process_of_its_own(name: str, in_process: Callable[..., Any]):
    pdf_text = in_process(read_pdf, UNDAMAGED_PDFS[name], timeout=PROCESS_TIMEOUT)
    assert isinstance(pdf_text, PdfText)
    assert not pdf_text.needs_ocr


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    seed=st.integers(0, 2**32),
    damage=st.integers(1, 200),
    name=st.sampled_from(list(UNDAMAGED_PDFS)),
)
def test_a_damaged_pdf_never_hangs_or_crashes_the_caller(
    seed: int, damage: int, name: str, in_process: Callable[..., Any]
):
    rng = random.Random(seed)
    data = bytearray(UNDAMAGED_PDFS[name])
    for _ in range(damage):
        data[rng.randrange(len(data))] = rng.randrange(256)
    outcome = in_process(read_pdf, bytes(data), timeout=PROCESS_TIMEOUT)
    assert isinstance(outcome, PdfText | CorruptDocument | EncryptedDocument | DocumentTooLarge)


@pytest.mark.parametrize(
    "data",
    [b"%PDF-1.7\n", b"%PDF-1.7\n%%EOF\n", b"%PDF-1.7\n" + b"\0" * 5000 + b"\n%%EOF", b"hello"],
)
def test_a_file_with_only_the_header_of_a_pdf_is_corrupt(data: bytes):
    with pytest.raises(CorruptDocument):
        read_pdf(data)


@pytest.mark.parametrize("name", not_pdfs())
@pytest.mark.parametrize("extractor", ["pymupdf", "pypdfium2"])
def test_other_files_that_the_library_reads_are_not_opened_as_pdfs(
    name: str, extractor: ExtractorName
):
    with pytest.raises(CorruptDocument):
        read_pdf(not_pdfs()[name], extractor=extractor)
    with pytest.raises(CorruptDocument):
        read_pdf(not_pdfs()[name].replace(b"1 0 obj", b"%PDF-1.7"), extractor=extractor)


def read_with(extractor: ExtractorName, data: bytes) -> PdfText:
    return read_pdf(data, extractor=extractor)


@pytest.mark.parametrize("extractor", ["pymupdf", "pypdfium2"])
def test_an_outline_of_any_depth_is_read_up_to_a_limit(
    extractor: ExtractorName, in_process: Callable[..., Any]
):
    pdf_text = in_process(read_with, extractor, deep_outline(), timeout=3 * PROCESS_TIMEOUT)
    assert isinstance(pdf_text, PdfText), pdf_text
    assert 5 <= len(pdf_text.outline) <= 100
    assert {entry.page for entry in pdf_text.outline} <= {0, 1}


def test_outline_entries_find_their_pages_by_every_kind_of_target():
    document = pymupdf.open("pdf", pdf([TEXT] * 3))
    first, second, third = (document.page_xref(index) for index in range(3))
    targets = [
        f"/Dest[{second} 0 R/Fit]",
        "/Dest(by\\377name)",
        "/Dest/old",
        f"/A<</S/GoTo/D[{third} 0 R/XYZ 0 0 0]>>",
        "/A<</S/GoTo/D(with-more)>>",
        "/Dest[1/Fit]",
        "/A<</S/URI/URI(https://example.org)>>",
        "/Dest(nowhere)",
        "",
    ]
    entries = [document.get_new_xref() for _ in targets]
    next_links = [*(f"/Next {xref} 0 R" for xref in entries[1:]), f"/Next {entries[0]} 0 R"]
    for xref, target, next_link in zip(entries, targets, next_links, strict=True):
        document.update_object(xref, f"<</Title(Tide){target}{next_link}>>")
    catalog = document.pdf_catalog()
    document.xref_set_key(catalog, "Outlines", f"<</First {entries[0]} 0 R>>")
    document.xref_set_key(catalog, "Dests", f"<</old[{third} 0 R/Fit]>>")
    names = f"(by\\377name)[{second} 0 R/Fit](with-more)<</D[{first} 0 R/Fit]>>"
    document.xref_set_key(catalog, "Names", f"<</Dests<</Kids[<</Names[{names}]>>]>>>>")
    outline = read_pdf(document.tobytes()).outline
    assert [entry.page for entry in outline] == [2, 2, 3, 3, 1, 2, 0, 0, 0]
    assert {(entry.level, entry.title) for entry in outline} == {(1, "Tide")}


def test_a_wrong_cross_reference_is_repaired_when_the_file_is_whole():
    keyword_start = UNDAMAGED_PDFS["plain"].rindex(b"startxref")
    damaged = UNDAMAGED_PDFS["plain"][:keyword_start] + b"startxref\n1\n%%EOF\n"
    pdf_text = read_pdf(damaged)
    assert pdf_text.repaired
    assert len(pdf_text.pages) == 5


def test_a_pdf_with_a_password_is_refused():
    with pytest.raises(
        EncryptedDocument, match="password only: save it without, and send it again"
    ):
        read_pdf(encrypted("secret"))


@pytest.mark.parametrize("extractor", ["pymupdf", "pypdfium2"])
def test_a_pdf_of_which_only_attachments_are_encrypted_is_read(extractor: ExtractorName):
    assert read_pdf(attachments_encrypted("/EFF/StdCF"), extractor=extractor).pages[0].text == TEXT
    filters = "/StmF/Identity/StrF/Identity/EFF/StdCF"
    pdf_text = read_pdf(attachments_encrypted(filters), extractor=extractor)
    assert pdf_text.pages[0].text == TEXT
    for filters in ("/StmF/StdCF", "/StrF/StdCF", "/StmF/StdCF/StrF/StdCF"):
        with pytest.raises((EncryptedDocument, CorruptDocument)):
            read_pdf(attachments_encrypted(filters), extractor=extractor)


@pytest.mark.parametrize(
    ("content", "resources"),
    [
        (b"/Span<</ActualText(The tide)>>BDC EMC", ""),
        (b"/Span<</ActualText(The tide)>>BDC 0 0 m 9 9 l S EMC", ""),
        (b"/C cs 1 scn 0 0 9 9 re f", "/ColorSpace<</C[/ICCBased 1 0 R]>>"),
        (b"/Nowhere gs 0 0 9 9 re f", ""),
        (b"q q Q Q Q Q", ""),
    ],
    ids=["tag-without-text", "tag-of-a-drawing", "profile", "state", "restored-too-often"],
)
def test_a_warning_is_no_damage_where_nothing_was_lost(content: bytes, resources: str):
    output = extract(drawn(content, resources), PDF, title=None, filename=None)
    assert output["broken_pages"] == []
    assert output["needs_ocr"]


@pytest.mark.parametrize(
    ("content", "stream_fields"),
    [
        (b"junk" * 30, "/Filter/FlateDecode"),
        (zlib.compress(b"BT (word) Tj ET" * 50)[:9], "/Filter/FlateDecode"),
        (b"BT (word) Tj ET", "/Filter/Unheard"),
        (b"/Nowhere Do", ""),
        (b"tide moon " * 20, ""),
    ],
    ids=["packed-badly", "packed-and-cut", "filter", "form", "no-operators"],
)
def test_a_page_that_has_lost_all_its_content_is_broken(content: bytes, stream_fields: str):
    with pytest.raises(CorruptDocument, match="page 1 can't be read"):
        extract(drawn(content, about=stream_fields), PDF, title=None, filename=None)


def test_a_pdf_that_is_encrypted_but_open_to_all_is_read():
    assert not read_pdf(encrypted("")).needs_ocr


def test_the_error_names_the_limit_that_a_document_exceeds():
    with pytest.raises(DocumentTooLarge, match="5 pages, 4 are allowed"):
        read_pdf(UNDAMAGED_PDFS["plain"], Limits(pages=4))
    with pytest.raises(DocumentTooLarge, match="characters"):
        read_pdf(UNDAMAGED_PDFS["plain"], Limits(characters=100))
    with pytest.raises(DocumentTooLarge, match=r"page 1 .* 30000 × 30000 pixels"):
        read_pdf(sized(14_400, 14_400))
    with pytest.raises(DocumentTooLarge, match="an image of 3000 × 3000"):
        read_pdf(scanned(size=3_000), Limits(page_pixels=3_000_000))


def test_an_image_within_forms_is_measured_however_they_are_used():
    document = pymupdf.open()
    page = document.new_page()
    used_twice, containing_itself, image = (document.get_new_xref() for _ in range(3))
    form = "<</Type/XObject/Subtype/Form/BBox[0 0 9 9]/Resources<</XObject<<%s>>>>>>"
    document.update_object(used_twice, form % "")
    document.update_object(
        containing_itself, form % f"/Self {containing_itself} 0 R/Image {image} 0 R"
    )
    document.update_object(image, "<</Type/XObject/Subtype/Image/Width 20000/Height 20001>>")
    for xref in (used_twice, containing_itself, image):
        document.update_stream(xref, b" ")
    forms = f"/A {used_twice} 0 R/B {used_twice} 0 R/C {containing_itself} 0 R"
    document.xref_set_key(page.xref, "Resources", f"<</XObject<<{forms}>>>>")
    with pytest.raises(DocumentTooLarge, match="an image of 20000 × 20001"):
        read_pdf(document.tobytes())


@pytest.mark.parametrize(
    ("text", "filename", "title"),
    [
        ("# On Tides\n\nThey rise.", "tides.md", "On Tides"),
        ("On Tides\n\nThey rise and they fall.", "x.txt", "On Tides"),
        ("They rise and they fall, and so on.", "dir/tides.txt", "tides.txt"),
        ("They rise and they fall, and so on.", None, "Untitled"),
    ],
)
def test_a_text_gets_a_title(text: str, filename: str | None, title: str):
    output = extract(text.encode(), MARKDOWN, title=None, filename=filename)
    assert output["title"] == title
    assert extract(text.encode(), MARKDOWN, title="Given", filename=None)["title"] == "Given"


def test_text_files_have_the_same_output_fields_as_pdfs():
    text = extract("Grüße aus München.".encode(), PLAIN_TEXT, title=None, filename="a.txt")
    from_pdf = extract(pdf(), "application/pdf", title=None, filename="a.pdf")
    assert text.keys() == from_pdf.keys()
    assert (text["page_count"], text["word_count"]) == (1, 3)
    with pytest.raises(CorruptDocument, match="no words"):
        extract(b" \n ...", PLAIN_TEXT, title=None, filename=None)


# --- damaged files that readers can open --------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.replace(b"%%EOF", b""),
        lambda data: data[: data.rindex(b"startxref")] + b"startxref\n1\n",
        lambda data: data + b"\0garbage" * 40_000,
        lambda data: data + b"<html>502 Bad Gateway</html>" * 10_000,
        lambda data: data[data.index(b"\n") + 1 :],
        lambda data: b"%PFD" + data[4:],
        lambda data: b"junk\n" * 150 + data,
    ],
    ids=["no-eof", "no-eof-repaired", "garbage", "html", "no-header", "misspelt", "junk-before"],
)
def test_a_damaged_file_that_readers_can_open_is_accepted(damage: Callable[[bytes], bytes]):
    data = damage(UNDAMAGED_PDFS["plain"])
    assert media_type_of(data, None) == PDF
    refuse_unsupported(data[:SNIFF_BYTES])
    refuse_false_pdf(data[:SNIFF_BYTES], "paper.pdf")
    output = extract(data, PDF, title=None, filename=None)
    assert [page["text"] for page in output["pages"]] == [TEXT] * 5
    assert output["broken_pages"] == []


def test_a_broken_page_is_listed_and_the_others_are_read():
    output = extract(with_a_broken_page(), PDF, title=None, filename=None)
    assert output["broken_pages"] == [2]
    assert output["repaired"]
    assert [bool(page["text"]) for page in output["pages"]] == [True, False, True]


def test_a_text_about_pdfs_is_a_text():
    text = b"# Objects\n\nAn object looks like this:\n\n1 0 obj\n<< /Type /Page >>\nendobj\n"
    assert media_type_of(text, "objects.md") == MARKDOWN


def test_no_image_is_decoded_for_the_sake_of_the_title():
    """The first page has 360 million pixels in a few kilobytes."""
    document = pymupdf.open()
    page = document.new_page()
    for shade in range(10):
        image = pymupdf.Pixmap(pymupdf.csGRAY, pymupdf.IRect(0, 0, 6_000, 6_000))
        image.clear_with(100 + shade)
        page.insert_image(pymupdf.Rect(50, 50, 500, 500), pixmap=image)
    page.insert_text((50, 40), "Heading", fontsize=20)
    page.insert_text((50, 700), "Some words below.", fontsize=10)
    data = bytes(document.tobytes(deflate=True))
    began = time.process_time()
    assert read_pdf(data).title == "Heading"
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    "message",
    ["malloc (8 bytes) failed", "calloc (1 x 8 bytes) failed", "realloc (8 bytes) failed"],
)
def test_memory_that_ran_out_is_no_fault_of_the_document(message: str):
    library = SimpleNamespace(mupdf=SimpleNamespace(FzErrorBase=RuntimeError))
    with pytest.raises(MemoryError, match="alloc"), _reading(library, b"", "it"):
        raise RuntimeError(f"code=1: {message}")


def test_a_scan_of_which_the_library_complains_needs_ocr_and_is_not_broken():
    data = scanned().replace(b"/DeviceGray", b"/DeviceNone")
    pdf_text = read_pdf(data)
    assert pdf_text.needs_ocr
    assert not any(page.error is not None for page in pdf_text.pages)


def test_without_pymupdf_the_error_says_what_to_do_and_is_permanent(
    monkeypatch: pytest.MonkeyPatch,
):
    content = pdf([TEXT])
    monkeypatch.setitem(sys.modules, "pymupdf", None)
    with pytest.raises(PyMuPDFNotInstalled, match="set JOBS_PDF_EXTRACTOR=pypdfium2") as refused:
        read_pdf(content)
    assert isinstance(refused.value, PermanentError)
    assert read_pdf(content, extractor="pypdfium2").pages[0].text
