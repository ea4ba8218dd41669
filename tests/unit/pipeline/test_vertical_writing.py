"""Columns that are written from top to bottom are read so, from right to left."""

from __future__ import annotations

import pymupdf

from switchyard.services.pipeline.text.layout import Line
from switchyard.services.pipeline.text.markdown import PageLines, compose
from switchyard.services.pipeline.text.pdf import read_pdf
from switchyard.services.pipeline.text.vertical_text import turn_vertical_lines

COLUMNS = ("吾輩は猫である。名前は", "まだ無い。どこで生れた", "かとんと見当がつかぬ。")
ENCODING = "UniJIS-UTF16-V"
"""The PDF encoding for writing from top to bottom."""


def make_vertical_pdf(columns: tuple[str, ...]) -> bytes:
    """Return a PDF with these columns, in a font that every Japanese reader has."""
    document = pymupdf.open()
    page = document.new_page()

    def add_object(source: str, stream: bytes | None = None) -> str:
        xref = document.get_new_xref()
        document.update_object(xref, source)
        if stream is not None:
            document.update_stream(xref, stream)
        return f"{xref} 0 R"

    name = "KozMinPro-Regular"
    descriptor = add_object(
        f"<</Type/FontDescriptor/FontName/{name}/Flags 6/FontBBox[0 -120 1000 880]/ItalicAngle 0"
        "/Ascent 880/Descent -120/CapHeight 700/StemV 80>>"
    )
    system = "<</Registry(Adobe)/Ordering(Japan1)/Supplement 4>>"
    glyphs = add_object(
        f"<</Type/Font/Subtype/CIDFontType0/BaseFont/{name}/CIDSystemInfo{system}/DW 1000"
        f"/FontDescriptor {descriptor}>>"
    )
    font = add_object(
        f"<</Type/Font/Subtype/Type0/BaseFont/{name}-{ENCODING}/Encoding/{ENCODING}"
        f"/DescendantFonts[{glyphs}]>>"
    )
    operators = "".join(
        f"BT /V 16 Tf 1 0 0 1 {500 - 24 * index} 780 Tm <{text.encode('utf-16-be').hex()}> Tj ET\n"
        for index, text in enumerate(columns)
    )
    document.xref_set_key(page.xref, "Contents", add_object("<<>>", operators.encode()))
    document.xref_set_key(page.xref, "Resources", f"<</Font<</V {font}>>>>")
    return document.tobytes()


def make_column(x: float, texts: str | tuple[str, ...], step: float = 20.0) -> list[Line]:
    """Return letters that are placed one by one."""
    return [
        Line(x, 80 + index * step, x + 16, 96 + index * step, text, 16)
        for index, text in enumerate(texts)
    ]


def compose_page(lines: list[Line]) -> str:
    (text,) = compose([PageLines(595, 842, lines)])
    return text


def test_a_page_in_vertical_writing_is_read_down_its_columns_from_the_right() -> None:
    (page,) = read_pdf(make_vertical_pdf(COLUMNS)).pages
    assert page.text == "".join(COLUMNS)


def test_letters_that_are_placed_one_below_the_other_are_vertical_writing() -> None:
    lines = [*make_column(400, COLUMNS[0]), *make_column(370, (*COLUMNS[1], "10", "月"))]
    assert compose_page(lines) == f"{COLUMNS[0]}{COLUMNS[1]}10月"


def test_letters_in_the_cells_of_a_table_stay_in_its_rows() -> None:
    lines = [*make_column(100, "甲乙丙丁", step=40.0), *make_column(200, "春夏秋冬", step=40.0)]
    assert "| 乙 | 夏 |" in compose_page(lines)


def test_a_page_of_many_horizontal_lines_beside_a_column_is_not_turned() -> None:
    horizontal = [
        Line(50, 80 + index * 20, 330, 96 + index * 20, "これは横書きの長い文です。", 16)
        for index in range(20)
    ]
    assert turn_vertical_lines([*horizontal, *make_column(400, COLUMNS[0])], 595) is None
