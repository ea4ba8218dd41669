"""Each reference's boxes: within its lines, in its column, on its pages."""

from __future__ import annotations

from switchyard.services.pipeline.citations.reference_boxes import Box, boxes_of
from switchyard.services.pipeline.text.layout import Line
from switchyard.services.pipeline.text.markdown import PageLines


def make_line(x: float, y: float, text: str) -> Line:
    return Line(x, y, x + 200, y + 10, text, 10.0)


def make_page(*lines: Line) -> PageLines:
    return PageLines(600, 800, lines)


def test_references_that_go_on_in_the_next_column_or_page():
    left = [
        make_line(50, 100 + 12 * n, f"[{n}] The left column has its reference {n}.")
        for n in range(9)
    ]
    left.append(make_line(50, 208, "[9] A work on tides and their ca-"))
    right = [make_line(320, 100, "uses, which goes on here. 1999.")]
    right += [
        make_line(320, 112 + 12 * n, f"[1{n}] Others follow with number {n}.") for n in range(9)
    ]
    last_line = make_line(320, 220, "[20] A last one that begins here and")
    second_page = make_page(
        make_line(50, 60, "ends on the next page, 2004."), make_line(50, 72, "Something else.")
    )
    found_boxes = boxes_of(
        [make_page(*left, *right, last_line), second_page],
        [
            (1, "A work on tides and their causes, which goes on here. 1999."),
            (1, "A last one that begins here and ends on the next page, 2004."),
            (1, "Nothing of the kind stands anywhere."),
            (7, "A page that there is not."),
        ],
    )
    assert found_boxes == [
        [Box(1, 50, 208, 200, 10), Box(1, 320, 100, 200, 10)],
        [Box(1, 320, 220, 200, 10), Box(2, 50, 60, 200, 10)],
        [],
        [],
    ]


def test_references_that_begin_alike_have_boxes_of_their_own():
    beginning = "Smith, A. and Roe, R. Tides and harbours, part"
    page = make_page(
        make_line(50, 100, f"{beginning} 1."),
        make_line(50, 112, f"{beginning} 2."),
        make_line(50, 124, f"{beginning} 3."),
    )
    found_boxes = boxes_of([page], [(1, f"{beginning} {n}.") for n in (1, 2, 3)])
    assert [boxes[0].y for boxes in found_boxes] == [100, 112, 124]


def test_a_page_that_can_t_be_read_has_no_boxes():
    assert boxes_of([None], [(1, "A reference. 1999.")]) == [[]]
    assert boxes_of([], [(1, "A reference. 1999."), (1, "")]) == [[], []]
