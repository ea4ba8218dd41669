"""Lines of a page, in any order, are put into the order in which a person reads them, quickly."""

from __future__ import annotations

import random
import time

import pytest

from switchyard.services.pipeline.text.layout import (
    MAX_LINES,
    Line,
    blocks_of,
    paragraphs_of,
    reading_order,
)

LINE_HEIGHT, LINE_STEP = 10.0, 13.0


def make_column(name: str, x: float, width: float, rows: int, top: float = 100.0) -> list[Line]:
    """Return lines of text below one another, the last one short."""
    return [
        Line(
            x,
            top + row * LINE_STEP,
            x + width * (0.4 if row == rows - 1 else 1),
            top + row * LINE_STEP + LINE_HEIGHT,
            f"{name}{row}",
            LINE_HEIGHT,
        )
        for row in range(rows)
    ]


def read_shuffled(lines: list[Line], seed: int = 7) -> str:
    shuffled = list(lines)
    random.Random(seed).shuffle(shuffled)
    return " ".join(line.text for block in reading_order(shuffled) for line in block)


def join_texts(*columns: list[Line]) -> str:
    return " ".join(line.text for each in columns for line in each)


def test_one_column_is_read_from_top_to_bottom():
    lines = make_column("a", 50, 400, 20)
    assert read_shuffled(lines) == join_texts(lines)


@pytest.mark.parametrize("columns", [2, 3])
def test_columns_are_read_one_after_the_other(columns: int):
    width = 480 / columns - 14
    columns_of_lines = [
        make_column("abc"[n], 50 + n * 480 / columns, width, 20 + n) for n in range(columns)
    ]
    assert read_shuffled([line for each in columns_of_lines for line in each]) == join_texts(
        *columns_of_lines
    )


def test_a_headline_over_both_columns_stands_before_them_and_divides_them():
    title = [Line(100, 60, 400, 84, "title", 24)]
    top = [make_column("a", 50, 220, 12), make_column("b", 290, 220, 12)]
    middle = [Line(60, 290, 500, 304, "middle", 14)]
    lower = [make_column("c", 50, 220, 12, 330), make_column("d", 290, 220, 12, 330)]
    lines = [*title, *top[0], *top[1], *middle, *lower[0], *lower[1]]
    assert read_shuffled(lines) == join_texts(title, *top, middle, *lower)


def test_a_title_and_a_box_over_half_the_height_of_two_columns_divide_them():
    title = make_column("t", 50, 480, 2, top=60)
    upper = [make_column("a", 50, 220, 4), make_column("b", 300, 220, 4)]
    box = make_column("x", 50, 480, 4, top=170)
    lower = [make_column("c", 50, 220, 3, top=240), make_column("d", 300, 220, 3, top=240)]
    columns_of_lines = [title, *upper, box, *lower]
    assert read_shuffled([line for each in columns_of_lines for line in each]) == join_texts(
        *columns_of_lines
    )


def test_paragraphs_that_end_at_the_same_height_do_not_cut_columns():
    left = make_column("a", 50, 220, 8) + make_column("b", 50, 220, 8, 230)
    right = make_column("c", 290, 220, 8) + make_column("d", 290, 220, 8, 230)
    assert read_shuffled(left + right) == join_texts(left, right)


def test_labels_and_values_are_read_row_by_row():
    labels = [
        Line(50, 100 + n * LINE_STEP, 90, 110 + n * LINE_STEP, f"l{n}", LINE_HEIGHT)
        for n in range(6)
    ]
    values = [
        Line(150, 100 + n * LINE_STEP, 210, 110 + n * LINE_STEP, f"v{n}", LINE_HEIGHT)
        for n in range(6)
    ]
    rows = [line for pair in zip(labels, values, strict=True) for line in pair]
    assert read_shuffled(labels + values) == join_texts(rows)


def test_a_wider_space_and_other_letters_begin_a_paragraph():
    heading = [Line(50, 60, 200, 78, "heading", 18)]
    lines = heading + make_column("a", 50, 400, 4) + make_column("b", 50, 400, 4, 170)
    (block,) = blocks_of(lines)
    assert [[line.text for line in each] for each in paragraphs_of(block)] == [
        ["heading"],
        ["a0", "a1", "a2", "a3"],
        ["b0", "b1", "b2", "b3"],
    ]


def test_letters_without_a_size_cause_no_error():
    block = [
        [Line(0, 12 * n, 100, 12 * n + 10, f"line {n}", size)] for n, size in enumerate((0, 0, 9))
    ]
    assert [[line.text for line in each] for each in paragraphs_of(block)] == [
        ["line 0"],
        ["line 1"],
        ["line 2"],
    ]


@pytest.mark.parametrize("shape", ["random", "stairs", "grid", "same"])
def test_any_number_of_lines_takes_little_time(shape: str):
    rng = random.Random(3)

    def position_of(n: int) -> tuple[float, float]:
        if shape == "random":
            return rng.random() * 1000, rng.random() * 1000
        if shape == "stairs":
            return n * 9.0, n * 9.0
        return (n % 100 * 90.0, n // 100 * 13.0) if shape == "grid" else (0.0, 0.0)

    lines = [
        Line(x, y, x + 70, y + 10, str(n), 10)
        for n, (x, y) in enumerate(position_of(n) for n in range(MAX_LINES))
    ]
    began = time.process_time()
    blocks = reading_order(lines)
    assert sum(map(len, blocks)) == MAX_LINES
    assert time.process_time() - began < 8
