"""A text that is too long for a model loses some of every part, and no part as a whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.services.pipeline.text.sections import GAP, fit, sections_of


@given(st.lists(st.text(max_size=3000), max_size=30), st.integers(100, 5000))
def test_the_budget_is_never_exceeded(sections: list[str], budget: int):
    text, truncated = fit(sections, budget)
    assert len(text) <= budget
    if not truncated:
        assert text == "\n\n".join(sections)


def test_a_text_within_the_budget_is_left_alone():
    assert fit(["one", "two"], 100) == ("one\n\ntwo", False)


def test_every_section_keeps_its_beginning():
    sections = [f"Part {n} begins here. " + f"Filling of part {n}. " * 200 for n in range(10)]
    text, truncated = fit(sections, 5000)
    assert truncated
    assert all(f"Part {n} begins here." in text for n in range(10))
    assert text.count(GAP) == 10


def test_short_sections_stay_whole_and_leave_their_share_to_long_ones():
    short_section = "The whole of a short section."
    long_section = "A sentence of the long section. " * 500
    text, _ = fit([short_section, long_section, short_section], 4000)
    assert text.count(short_section) == 2
    assert len(text) > 3800


def test_of_too_many_sections_the_first_and_the_last_are_kept():
    sections = [f"Section {n}. " + "x " * 500 for n in range(1000)]
    text, _ = fit(sections, 2000)
    assert "Section 0." in text
    assert "Section 999." in text


def test_sections_are_those_of_the_headings():
    page = "# One\n\ntext\n\n## Two\n\nmore\n\nand more"
    assert sections_of([page]) == ["# One\n\ntext", "## Two\n\nmore\n\nand more"]


@pytest.mark.parametrize("pages", [["a", "", "b"], ["# a", "b"]])
def test_without_headings_sections_are_pages(pages: list[str]):
    assert sections_of(pages) == [page for page in pages if page]
