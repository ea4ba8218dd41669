"""Pictures that are too large for the models are read piece by piece, each line once."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from switchyard.services.llm.vision_model import picture_chat
from switchyard.services.pipeline.text.figures import MAX_SIDE, _pieces
from switchyard.services.pipeline.text.ocr_pieces import PIECE_SIZE, _join_boxes, _starts
from switchyard.services.pipeline.text.pdf_pages import shrink_factor


def make_box(x0: float, y0: float, x1: float, y1: float) -> np.ndarray:
    return np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]], np.float32)


@pytest.mark.parametrize("size", [10, PIECE_SIZE, PIECE_SIZE + 1, 2_000, 14_000])
def test_pieces_cover_the_picture_and_overlap_by_more_than_a_line(size: int):
    starts = list(_starts(size))
    assert starts[0] == 0
    assert starts[-1] + PIECE_SIZE >= size
    for start, next_start in pairwise(starts):
        assert start < next_start <= start + PIECE_SIZE - 200


def test_a_line_in_two_pieces_is_found_once_and_whole():
    long_box, cut_box, other_box = (
        make_box(10, 100, 500, 130),
        make_box(10, 118, 500, 131),
        make_box(10, 140, 500, 170),
    )
    boxes = _join_boxes([cut_box, other_box, long_box])
    assert len(boxes) == 2
    assert any((part == long_box).all() for part in boxes)


def test_a_line_that_goes_on_in_the_next_piece_is_one_box():
    (joined_box,) = _join_boxes([make_box(10, 100, 1_600, 130), make_box(1_400, 101, 2_900, 131)])
    assert (joined_box == make_box(10, 100, 2_900, 131)).all()
    (upright_box,) = _join_boxes([make_box(100, 10, 130, 1_600), make_box(101, 1_400, 131, 2_900)])
    assert (upright_box == make_box(100, 10, 131, 2_900)).all()


def test_lines_below_one_another_stay_two_although_their_boxes_touch():
    assert len(_join_boxes([make_box(10, 100, 500, 132), make_box(10, 128, 500, 160)])) == 2


@pytest.mark.parametrize(
    ("width", "height", "scale"),
    [(1_080, 14_000, 1), (1_240, 1_754, 1), (2_480, 3_508, 1), (4_000, 24_000, 0.5)],
)
def test_a_picture_keeps_its_size_as_long_as_it_has_not_too_many_pixels(
    width: int, height: int, scale: float
):
    assert shrink_factor(width, height, 3_000, 24_000_000) == scale


def test_without_a_limit_of_pixels_the_longer_side_decides_the_scale():
    assert shrink_factor(1_080, 15_000, 3_000) == 0.2


@pytest.mark.parametrize("size", [(1_080, 14_000), (14_000, 1_080)])
def test_a_long_page_is_shown_to_a_model_in_pieces_that_overlap(size: tuple[int, int]):
    pieces = _pieces(Image.new("RGB", size))
    long_axis = size.index(max(size))
    assert {min(piece.size) for piece in pieces[:-1]} == {1_080}
    assert max(max(piece.size) for piece in pieces) <= MAX_SIDE
    assert sum(piece.size[long_axis] for piece in pieces) > max(size)
    content = picture_chat([(b"", "image/png")] * len(pieces), "", None)["messages"][1]["content"]
    assert [part["type"] for part in content] == ["text", *["image_url"] * len(pieces)]
    assert f"its {len(pieces)} pieces" in content[0]["text"]


def test_a_page_of_usual_proportions_is_one_picture():
    (piece,) = _pieces(Image.new("RGB", (2_480, 3_508)))
    assert piece.size == (1_060, MAX_SIDE)
