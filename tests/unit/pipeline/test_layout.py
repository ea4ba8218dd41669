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

HEIGHT, STEP = 10.0, 13.0


def column(name: str, x: float, width: float, rows: int, top: float = 100.0) -> list[Line]:
    """Return lines of text below one another, the last one short."""
    return [
        Line(
            x,
            top + row * STEP,
            x + width * (0.4 if row == rows - 1 else 1),
            top + row * STEP + HEIGHT,
            f"{name}{row}",
            HEIGHT,
        )
        for row in range(rows)
    ]


def read(lines: list[Line], seed: int = 7) -> str:
    shuffled = list(lines)
    random.Random(seed).shuffle(shuffled)
    return " ".join(line.text for block in reading_order(shuffled) for line in block)


def names_of(*columns: list[Line]) -> str:
    return " ".join(line.text for each in columns for line in each)


def test_one_column_is_read_from_top_to_bottom():
    only = column("a", 50, 400, 20)
    assert read(only) == names_of(only)


@pytest.mark.parametrize("columns", [2, 3])
def test_columns_are_read_one_after_the_other(columns: int):
    width = 480 / columns - 14
    columns_of_lines = [
        column("abc"[n], 50 + n * 480 / columns, width, 20 + n) for n in range(columns)
    ]
    assert read([line for each in columns_of_lines for line in each]) == names_of(*columns_of_lines)


def test_a_headline_over_both_columns_stands_before_them_and_divides_them():
    title = [Line(100, 60, 400, 84, "title", 24)]
    top = [column("a", 50, 220, 12), column("b", 290, 220, 12)]
    middle = [Line(60, 290, 500, 304, "middle", 14)]
    low = [column("c", 50, 220, 12, 330), column("d", 290, 220, 12, 330)]
    lines = [*title, *top[0], *top[1], *middle, *low[0], *low[1]]
    assert read(lines) == names_of(title, *top, middle, *low)


def test_a_title_and_a_box_over_half_the_height_of_two_columns_divide_them():
    title = column("t", 50, 480, 2, top=60)
    upper = [column("a", 50, 220, 4), column("b", 300, 220, 4)]
    box = column("x", 50, 480, 4, top=170)
    lower = [column("c", 50, 220, 3, top=240), column("d", 300, 220, 3, top=240)]
    columns_of_lines = [title, *upper, box, *lower]
    assert read([line for each in columns_of_lines for line in each]) == names_of(*columns_of_lines)


def test_paragraphs_that_end_at_the_same_height_do_not_cut_columns():
    left = column("a", 50, 220, 8) + column("b", 50, 220, 8, 230)
    right = column("c", 290, 220, 8) + column("d", 290, 220, 8, 230)
    assert read(left + right) == names_of(left, right)


def test_labels_and_values_are_read_row_by_row():
    labels = [Line(50, 100 + n * STEP, 90, 110 + n * STEP, f"l{n}", HEIGHT) for n in range(6)]
    values = [Line(150, 100 + n * STEP, 210, 110 + n * STEP, f"v{n}", HEIGHT) for n in range(6)]
    both = [line for pair in zip(labels, values, strict=True) for line in pair]
    assert read(labels + values) == names_of(both)


def test_a_wider_space_and_other_letters_begin_a_paragraph():
    heading = [Line(50, 60, 200, 78, "heading", 18)]
    lines = heading + column("a", 50, 400, 4) + column("b", 50, 400, 4, 170)
    (block,) = blocks_of(lines)
    assert [[line.text for line in each] for each in paragraphs_of(block)] == [
        ["heading"],
        ["a0", "a1", "a2", "a3"],
        ["b0", "b1", "b2", "b3"],
    ]


def test_letters_of_no_size_as_in_a_damaged_file_are_no_error():
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
    chance = random.Random(3)

    def place(n: int) -> tuple[float, float]:
        if shape == "random":
            return chance.random() * 1000, chance.random() * 1000
        if shape == "stairs":
            return n * 9.0, n * 9.0
        return (n % 100 * 90.0, n // 100 * 13.0) if shape == "grid" else (0.0, 0.0)

    lines = [
        Line(x, y, x + 70, y + 10, str(n), 10)
        for n, (x, y) in enumerate(place(n) for n in range(MAX_LINES))
    ]
    began = time.process_time()
    blocks = reading_order(lines)
    assert sum(map(len, blocks)) == MAX_LINES
    assert time.process_time() - began < 8
