"""Lists of references as they stand in papers, cut into single ones and tied to the text."""

import pytest

from switchyard.services.pipeline.citations.reference import Person, Reference
from switchyard.services.pipeline.citations.reference_sections import (
    find_citations,
    split_references,
)

_NUMBERED_LIST = """[1] K. He, X. Zhang, S. Ren, and J. Sun. Deep residual learning. In
CVPR, pages 770–778, 2016.
[2] A. Vaswani et al. Attention is all you need. In Advances in Neural
Information Processing Systems, 2017."""


def split_beginnings(*pages: str) -> list[str]:
    """Return each reference up to its first full stop."""
    return [reference.text.split(".")[0] for reference in split_references(pages).references]


@pytest.mark.parametrize(
    "heading",
    [
        *["References", "REFERENCES", "7. References", "VI. REFERENCES", "## References"],
        *["Bibliography:", "Literaturverzeichnis", "Références bibliographiques", "Referencias"],
        *["Works Cited", "参考文献"],
    ],
)
def test_a_list_is_found_by_its_heading(heading):
    sections = split_references([f"Some text of 2001.\n{heading}\n{_NUMBERED_LIST}"])
    assert [reference.label for reference in sections.references] == ["1", "2"]
    assert sections.references[0].text.endswith("CVPR, pages 770–778, 2016.")
    assert "He" not in sections.body[0]


def test_numbers_without_brackets_are_followed_in_their_order():
    # "12." at the start of a line of the first reference is a volume, not the twelfth reference.
    text = (
        "References\n1. Smith J. A first title. Nature. 2001;\n12. 33-40.\n"
        "2. Doe A. A second title. Science. 2002;5:1-2.\n3. Roe B. A third. Cell. 2003;1:1."
    )
    assert [reference.label for reference in split_references([text]).references] == ["1", "2", "3"]
    assert "12. 33-40" in split_references([text]).references[0].text


def test_references_without_numbers_begin_with_their_authors():
    text = """References
Bishop, C. M. (2006). Pattern recognition and machine learning. New York:
Springer.
Dempster, A. P., Laird, N. M., & Rubin, D. B. (1977). Maximum-likelihood from
incomplete data via the EM algorithm. Journal of the Royal Statistical Society,
39, 1-38.
van der Pol, B. (1927). Frequency demultiplication. Nature, 120, 363-364."""
    assert split_beginnings(text) == ["Bishop, C", "Dempster, A", "van der Pol, B"]


@pytest.mark.parametrize(
    ("block", "starts"),
    [
        ("References [1] A. Roe. One. 1999. [2] B. Kuhn. Two. 1962. [3] C. Fox. Three. 2001.",
         ["A. Roe", "B. Kuhn", "C. Fox"]),
        ("References 1. Roe A. One. 1999;12:3. 2. Kuhn B. Two. 1962. 3. Fox C. Three. 2001.",
         ["Roe A.", "Kuhn B", "Fox C."]),
        ("References\nRoe, A. (1999). One. Cell, 1, 3. Kuhn, B. & Fox, C. (1962). Two. Cell, 2, 4.",
         ["Roe, A", "Kuhn, B"]),
    ],
)  # fmt: skip
def test_several_references_on_one_line_of_a_pdf_are_separated(block, starts):
    references = split_references([block]).references
    assert [
        reference.text[: len(start)] for reference, start in zip(references, starts, strict=True)
    ] == starts


def test_a_list_goes_on_over_pages_and_ends_where_the_appendix_begins():
    pages = [
        "Text.\nReferences\n[1] A. One. First. Nature, 1999.",
        "[2] B. Two. Second,\nScience, 2000.\nAppendix A. Proofs\n[3] is not a reference of 2001.",
    ]
    sections = split_references(pages)
    assert [(reference.label, reference.page) for reference in sections.references] == [
        ("1", 1), ("2", 2),
    ]  # fmt: skip
    assert "not a reference" in sections.body[1]


def test_each_chapter_may_have_its_own_list():
    chapter = f"A chapter's text.\nReferences\n{_NUMBERED_LIST}\n"
    sections = split_references([f"Chapter 1\n{chapter}Chapter 2\n{chapter}"])
    assert [reference.label for reference in sections.references] == ["1", "2", "1", "2"]


def test_a_numbered_list_without_a_heading_is_found_at_the_end():
    pages = ["As [1] and [2] say.", f"{_NUMBERED_LIST}\n[3] J. Dean. MapReduce. 2004."]
    assert len(split_references(pages).references) == 3


@pytest.mark.parametrize(
    "pages", [[], [""], ["No list here. References are rare."], ["References\nNone."]]
)
def test_a_paper_without_a_list_has_no_references(pages):
    assert split_references(pages).references == []


def test_citations_have_their_references_and_the_sentence_around_them():
    pages = [
        "Deep networks [1] win. Many say so [1, 3–4]. He was not there [99]. Nothing [x].",
        "Kuhn (1962) disagrees. It is known (see Roe et al., 1999; Kuhn, 1962, p. 4).",
        "References\n[1] A. Roe. One. 1999.\n[3] T. Kuhn. Two. 1962.\n[4] E. Fox. Three. 2001.",
    ]
    sections = split_references(pages)
    parsed = [
        Reference("", authors=(Person("Roe", "A."),), year=1999),
        Reference("", authors=(Person("Kuhn", "T."),), year=1962),
        Reference("", authors=(Person("Fox", "E."),), year=2001),
    ]
    citations = find_citations(sections.body, sections.references, parsed)
    assert [(citation.marker, citation.references, citation.page) for citation in citations] == [
        ("[1]", (0,), 1),
        ("[1, 3–4]", (0, 1, 2), 1),
        ("Kuhn (1962)", (1,), 2),
        ("(see Roe et al., 1999; Kuhn, 1962, p. 4)", (0, 1), 2),
    ]
    assert citations[0].sentence == "Deep networks [1] win."


@pytest.mark.parametrize(
    "piece",
    ["[1] ", "[1]\n", "(", "(Smith, 1999", "References\n", "1. A\n", "A. ", "[1,", "Smith (1999) ",
     "Smith, J. (1999). A.\n", "Aa Aa Aa ", "-", "###### "],
)  # fmt: skip
@pytest.mark.timeout(20)  # quadratic work on these 200 KB takes half a minute and more
def test_hostile_pages_take_time_in_proportion_to_their_length(piece):
    pages = [piece * (200_000 // len(piece)), "References\n" + piece * 1000]
    sections = split_references(pages)
    find_citations(sections.body, sections.references, [])
    assert len(sections.references) <= 5_000
