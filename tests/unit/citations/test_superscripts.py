"""Raised numbers that cite are tied to their references; exponents and footnotes are not."""

import pytest

from switchyard.services.pipeline.citations.reference_sections import (
    RawReference,
    find_citations,
    split_references,
)

REFERENCES = [RawReference(f"Reference {number}", str(number), 9) for number in range(1, 31)]


def find_markers(
    *pages: str, references: list[RawReference] = REFERENCES
) -> list[tuple[str, list[str]]]:
    """Return each marker of a citation, with the labels of its references."""
    return [
        (citation.marker, [references[index].label for index in citation.references])
        for citation in find_citations(pages, references, [])
    ]


@pytest.mark.parametrize(
    ("text", "marker", "labels"),
    [
        ("The tide rises twice a day.¹²", "¹²", ["12"]),
        ("The tide rises¹² twice a day.", "¹²", ["12"]),
        ("The tide rises,³ and falls again.", "³", ["3"]),
        ("The tide rises³,⁵–⁷ twice a day.", "³,⁵–⁷", ["3", "5", "6", "7"]),
        ("The tide rises⁵⁻⁷ twice a day.", "⁵⁻⁷", ["5", "6", "7"]),
        ("The tide rises (as the moon does)⁴ twice.", "⁴", ["4"]),
        ("Nobody calls this “a wave”² any more.", "²", ["2"]),
        ("Die Gezeiten wechseln täglich² bis heute.", "²", ["2"]),
        ("This was found already in 1999.⁸", "⁸", ["8"]),
    ],
)
def test_a_raised_number_is_tied_to_its_reference(text: str, marker: str, labels: list[str]):
    assert find_markers(text) == [(marker, labels)]


@pytest.mark.parametrize(
    "text",
    [
        "There were 10⁵ waves in this basin.",
        "It grows as x² does, and as (a + b)² or f(x)² do.",
        "The basin has 5 km² and holds 3 cm³ of each thing.",
        "We saw 12 waves day⁻¹ and 4 of each kind m⁻².",
        "The part is sin² of the angle, or log² of the length.",
        "The decay of ¹⁴C and of Ca²⁺ was measured here.",
        "There were thousands of cells⁹⁹ in each sample.",
        "The waves were seen on the 3rd day of each month.",
        "Jane Smith¹, John Doe² and Max Muster³",
    ],
)
def test_exponents_units_isotopes_and_lines_of_authors_are_no_citations(text: str):
    assert find_markers(text) == []


def test_each_marker_has_the_sentence_that_it_ends():
    text = "The tide rises twice a day.¹ Others have said so before.² This was new."
    citations = find_citations([text], REFERENCES, [])
    assert [citation.sentence for citation in citations] == [
        "The tide rises twice a day.¹",
        "Others have said so before.²",
    ]


def test_a_footnote_is_no_citation_and_the_same_number_on_another_page_is():
    page = "The tide rises twice a day.¹ It falls as often, and more.⁴\n¹ Not in the Baltic Sea."
    assert find_markers(page, "The moon is what does it in the end.¹") == [
        ("⁴", ["4"]),
        ("¹", ["1"]),
    ]


def test_the_address_of_an_author_does_not_hide_the_citations_of_its_page():
    page = "Jane Smith¹ and John Doe¹,²\n¹ Institute of Tides\n² Sea House\nThe tide rises twice.¹"
    assert find_markers(page) == [("¹", ["1"])]


def test_where_brackets_or_names_cite_works_raised_numbers_are_footnotes():
    page = "The tide rises twice a day.¹ Others disagree with this [2]."
    assert find_markers(page) == [("[2]", ["2"])]
    unnumbered = [RawReference("Smith 1999", "", 2), RawReference("Doe 2001", "", 2)]
    assert find_markers("The tide rises twice a day.¹", references=unnumbered) == []


def test_a_list_may_have_raised_labels():
    sections = split_references(
        ["The tide.\nReferences\n¹ Roe R. On tides. 1999.\n² Smith A. The sea. 2004."]
    )
    assert [(reference.label, reference.text) for reference in sections.references] == [
        ("1", "Roe R. On tides. 1999."),
        ("2", "Smith A. The sea. 2004."),
    ]
