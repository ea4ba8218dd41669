"""References of several kinds and styles, cut by the model that comes with the package."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.services.pipeline.citations.assembling import _trimmed
from switchyard.services.pipeline.citations.parsing import OfflineParser
from switchyard.services.pipeline.citations.reference import Person, Reference
from switchyard.services.pipeline.citations.tokens import MAX_REFERENCE_CHARS, cleaned, tokens_of


@pytest.fixture(scope="module")
def parser() -> OfflineParser:
    return OfflineParser()


def test_an_article_is_cut_into_its_fields(parser):
    found = parser.parse(
        "[7] Lowe, D.G., 2004. Distinctive image features from scale-invariant keypoints. "
        "Int. J. Comput. Vis. 60, 91–110. https://doi.org/10.1023/B:VISI.0000029664.99615.94"
    )
    assert found.authors == (Person("Lowe", "D.G."),)
    assert found.title == "Distinctive image features from scale-invariant keypoints"
    assert found.container == "Int. J. Comput. Vis"
    assert (found.year, found.volume, found.pages) == (2004, "60", "91–110")
    assert found.doi == "10.1023/b:visi.0000029664.99615.94"
    assert found.language == "" or found.language == "en"
    assert found.engine == "offline"
    assert 0.5 < found.confidence <= 1


def test_given_names_may_stand_before_or_after_the_family_s(parser):
    found = parser.parse(
        "McClelland, L. E., and T. J. Vogus. 2014. Compassion practices and job satisfaction. "
        "Health Services Research 49 (5): 1670-1683."
    )
    assert found.authors == (Person("McClelland", "L. E."), Person("Vogus", "T. J."))


def test_a_chapter_names_its_book_its_editors_and_its_publisher(parser):
    found = parser.parse(
        "Rumelhart, D. E., Hinton, G. E., & Williams, R. J. (1986). Learning internal "
        "representations by error propagation. In D. E. Rumelhart & J. L. McClelland (Eds.), "
        "Parallel distributed processing (pp. 318–362). Cambridge, MA: MIT Press."
    )
    assert [person.family for person in found.authors] == ["Rumelhart", "Hinton", "Williams"]
    assert found.container == "Parallel distributed processing"
    assert "McClelland" in found.editors
    assert (found.publisher, found.pages, found.year) == ("MIT Press", "318–362", 1986)


def test_a_book_in_another_language_is_cut_too(parser):
    found = parser.parse(
        "Habermas, Jürgen (1990): Strukturwandel der Öffentlichkeit. Frankfurt am Main: Suhrkamp."
    )
    assert found.title == "Strukturwandel der Öffentlichkeit"
    assert (found.publisher, found.place) == ("Suhrkamp", "Frankfurt am Main")
    assert found.language == "de"


def test_lines_that_a_pdf_has_cut_are_put_together(parser):
    found = parser.parse(
        "J. Dean and S. Ghemawat. MapReduce: Simpli\ufb01ed data proces-\nsing on large clusters. "
        "In Proceedings of the 6th Symposium on Operating\nSystems Design and Implementation, "
        "pages 137–150, 2004."
    )
    assert found.title == "MapReduce: Simplified data processing on large clusters"
    assert [person.family for person in found.authors] == ["Dean", "Ghemawat"]


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("A. Author. Title. arXiv preprint arXiv:1810.04805v2, 2018.", "arxiv_id", "1810.04805v2"),
        ("B. Author, hep-th paper, arXiv:hep-th/9901001 (1999).", "arxiv_id", "hep-th/9901001"),
        ("Author. http://dx.doi.org/10.1016/03-39(94)00281-M.", "doi", "10.1016/03-39(94)00281-m"),
        ("D. Author (2001). Book. ISBN 978-3-16-148410-0.", "isbn", "9783161484100"),
        ("E. Author. A page. (https://example.org/a_(b)?c=d).", "url", "https://example.org/a_(b)?c=d"),
    ],
)  # fmt: skip
def test_identifiers_are_found_whatever_stands_around_them(parser, text, field, value):
    assert getattr(parser.parse(text), field) == value


def test_others_who_are_not_named_are_noted(parser):
    found = parser.parse(
        "Molander P, Farkkila M, Salminen K, et al. Outcome after discontinuation of therapy in "
        "patients with bowel disease. Inflamm Bowel Dis. 2014;20(6):1021-8."
    )
    assert found.more_authors
    assert found.authors[0] == Person("Molander", "P")


def test_only_what_is_there_is_told(parser):
    told = parser.parse("Kuhn, T. S. (1962). The structure of scientific revolutions.").as_json()
    assert "doi" not in told
    assert told["year"] == 1962


@pytest.mark.parametrize(
    "text", ["Logics of {a, b}", "The sea (in winter)", "Waves [a report]", "A plain title"]
)
def test_a_field_keeps_the_bracket_that_it_opens(text):
    assert _trimmed(f" “{text}.") == text.removesuffix(".")
    assert _trimmed(f"{text}). ") == text


@pytest.mark.parametrize("text", ["", " \n", "\x00", "."])
def test_what_says_nothing_is_a_reference_without_fields(parser, text):
    found = parser.parse(text)
    assert (found.title, found.authors, found.year) == ("", (), None)


@settings(max_examples=200)
@given(st.text(max_size=400))
def test_any_text_is_cut_without_an_error(text):
    found = OfflineParser().parse(text)
    assert isinstance(found, Reference)
    assert 0 <= found.confidence <= 1


@pytest.mark.parametrize(
    "piece", ["10.1000/", "http://", "((((", "\u201c", "A. ", "- \n", "1-", "ISBN 978-", "et al. "]
)
def test_a_text_without_an_end_is_bounded(parser, piece):
    text = piece * (2_000_000 // len(piece))
    assert len(cleaned(text)) <= MAX_REFERENCE_CHARS
    assert len(tokens_of(cleaned(text))) <= MAX_REFERENCE_CHARS
    parser.parse(text)
