"""Text from right to left, print drawn several times over, and XFA forms, by either extractor."""

from __future__ import annotations

from typing import Any

import pymupdf
import pytest

from switchyard.services.common.files.errors import UnsupportedDocument
from switchyard.services.pipeline.text.pdf import ExtractorName, read_pdf
from tests.support.pdfs import TEXT

by_both_extractors = pytest.mark.parametrize("extractor", ["pymupdf", "pypdfium2"])
HEBREW = "שלום עולם (2021) Python 3.11 סוף"


@by_both_extractors
@pytest.mark.parametrize("glyph_order", ["for readers", "as in a mirror"])
def test_hebrew_is_read_in_its_order(extractor: ExtractorName, glyph_order: str):
    document = pymupdf.open()
    page = document.new_page()
    if glyph_order == "for readers":
        expected = HEBREW
        page.insert_htmlbox(pymupdf.Rect(50, 50, 500, 100), f'<p dir="rtl">{expected}</p>')
    else:
        expected = "שלום עולם של מים"
        writer = pymupdf.TextWriter(page.rect)
        font = pymupdf.Font(script=pymupdf.mupdf.UCDN_SCRIPT_HEBREW)
        x = 50.0
        for char in expected:
            writer.append((x, 100), char, font=font, fontsize=12)
            x += font.text_length(char, 12)
        writer.write_text(page)
    (page_text,) = read_pdf(bytes(document.tobytes()), extractor=extractor).pages
    assert page_text.text == expected


def make_shadowed_pdf(draw: Any) -> bytes:
    document = pymupdf.open()
    page = document.new_page()
    for dx, dy in ((0.0, 0.0), (0.3, 0.0), (0.3, 0.3), (0.0, 0.3)):
        draw(page, dx, dy)
    return bytes(document.tobytes())


@by_both_extractors
def test_print_that_is_drawn_several_times_over_is_read_once(extractor: ExtractorName):
    def draw(page: Any, dx: float, dy: float) -> None:
        page.insert_text((50 + dx, 100 + dy), "Annual Report 2011", fontsize=24)
        page.insert_text((50 + dx, 200 + dy), [TEXT, f"Share price: {100:,}", "1111"], fontsize=11)

    pdf_text = read_pdf(make_shadowed_pdf(draw), extractor=extractor)
    text = " ".join(pdf_text.pages[0].text.replace("#", "").split())
    assert text == f"Annual Report 2011 {TEXT} Share price: 100 1111"
    assert pdf_text.title == "Annual Report 2011"


@by_both_extractors
def test_equal_texts_at_different_places_are_both_read(extractor: ExtractorName):
    document = pymupdf.open()
    document.new_page().insert_text((50, 100), ["no no no", "no no no"], fontsize=11)
    (page,) = read_pdf(bytes(document.tobytes()), extractor=extractor).pages
    assert page.text.split() == ["no"] * 6


def make_xfa_form(template: str, data: str) -> bytes:
    """Return an XFA form as Adobe's designer writes it: its one page only asks to wait."""
    document = pymupdf.open()
    document.new_page().insert_text((50, 100), "Please wait...", fontsize=11)
    parts = []
    for name, content in (("template", template), ("datasets", data)):
        xref = document.get_new_xref()
        document.update_object(xref, "<<>>")
        document.update_stream(xref, content.encode())
        parts.append(f"({name}) {xref} 0 R")
    catalog = document.pdf_catalog()
    document.xref_set_key(catalog, "NeedsRendering", "true")
    document.xref_set_key(catalog, "AcroForm", f"<</XFA[{' '.join(parts)}]/Fields[]>>")
    return bytes(document.tobytes())


TEMPLATE = (
    '<template xmlns="http://www.xfa.org/schema/xfa-template/2.8/"><subform>'
    "<draw><value><text>Application to sponsor</text></value></draw>"
    "<field name='f'><caption><value><text>Family name</text></value></caption>"
    "<items><text>Not shown</text></items><event><script>alert()</script></event></field>"
    "<draw presence='hidden'><value><text>Not shown either</text></value></draw>"
    "</subform></template>"
)
DATA = (
    '<xfa:datasets xmlns:xfa="http://www.xfa.org/schema/xfa-data/1.0/"><xfa:data><form>'
    "<family_name>Okafor &amp; Sons</family_name></form></xfa:data></xfa:datasets>"
)


@by_both_extractors
def test_an_xfa_form_is_read_with_the_values_that_were_entered(extractor: ExtractorName):
    (page,) = read_pdf(make_xfa_form(TEMPLATE, DATA), extractor=extractor).pages
    assert page.text == "Application to sponsor\n\nFamily name\n\nfamily_name: Okafor & Sons"


@by_both_extractors
@pytest.mark.parametrize(
    "template",
    ["", "no XML", "<!DOCTYPE a [<!ENTITY b 'word'>]><template>&b;</template>", "<a>" * 100_000],
)
def test_a_form_that_can_not_be_read_is_refused_with_what_to_do(
    extractor: ExtractorName, template: str
):
    with pytest.raises(UnsupportedDocument, match=r"XFA form.*print it to a PDF"):
        read_pdf(make_xfa_form(template, ""), extractor=extractor)
