"""References of several kinds and styles, cut by the model that comes with the package."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.services.pipeline.citations.offline_parser import OfflineParser
from switchyard.services.pipeline.citations.reference import Person, Reference
from switchyard.services.pipeline.citations.reference_assembly import _trim
from switchyard.services.pipeline.citations.token_features import _quotations
from switchyard.services.pipeline.citations.tokens import (
    MAX_REFERENCE_CHARS,
    clean_reference,
    tokens_of,
)


@pytest.fixture(scope="module")
def parser() -> OfflineParser:
    return OfflineParser()


def test_an_article_is_cut_into_its_fields(parser):
    parsed = parser.parse(
        "[7] Lowe, D.G., 2004. Distinctive image features from scale-invariant keypoints. "
        "Int. J. Comput. Vis. 60, 91–110. https://doi.org/10.1023/B:VISI.0000029664.99615.94"
    )
    assert parsed.authors == (Person("Lowe", "D.G."),)
    assert parsed.title == "Distinctive image features from scale-invariant keypoints"
    assert parsed.container == "Int. J. Comput. Vis."
    assert (parsed.year, parsed.volume, parsed.pages) == (2004, "60", "91–110")
    assert parsed.doi == "10.1023/b:visi.0000029664.99615.94"
    assert parsed.language == "" or parsed.language == "en"
    assert parsed.engine == "offline"
    assert 0.5 < parsed.confidence <= 1


def test_given_names_may_stand_before_or_after_the_family_name(parser):
    parsed = parser.parse(
        "McClelland, L. E., and T. J. Vogus. 2014. Compassion practices and job satisfaction. "
        "Health Services Research 49 (5): 1670-1683."
    )
    assert parsed.authors == (Person("McClelland", "L. E."), Person("Vogus", "T. J."))


def test_a_chapter_names_its_book_its_editors_and_its_publisher(parser):
    parsed = parser.parse(
        "Rumelhart, D. E., Hinton, G. E., & Williams, R. J. (1986). Learning internal "
        "representations by error propagation. In D. E. Rumelhart & J. L. McClelland (Eds.), "
        "Parallel distributed processing (pp. 318–362). Cambridge, MA: MIT Press."
    )
    assert [person.family for person in parsed.authors] == ["Rumelhart", "Hinton", "Williams"]
    assert parsed.container == "Parallel distributed processing"
    assert "McClelland" in parsed.editors
    assert (parsed.publisher, parsed.pages, parsed.year) == ("MIT Press", "318–362", 1986)


def test_a_book_in_another_language_is_cut_too(parser):
    parsed = parser.parse(
        "Habermas, Jürgen (1990): Strukturwandel der Öffentlichkeit. Frankfurt am Main: Suhrkamp."
    )
    assert parsed.title == "Strukturwandel der Öffentlichkeit"
    assert (parsed.publisher, parsed.place) == ("Suhrkamp", "Frankfurt am Main")
    assert parsed.language == "de"


def test_lines_that_a_pdf_has_cut_are_put_together(parser):
    parsed = parser.parse(
        "J. Dean and S. Ghemawat. MapReduce: Simpli\ufb01ed data proces-\nsing on large clusters. "
        "In Proceedings of the 6th Symposium on Operating\nSystems Design and Implementation, "
        "pages 137–150, 2004."
    )
    assert parsed.title == "MapReduce: Simplified data processing on large clusters"
    assert [person.family for person in parsed.authors] == ["Dean", "Ghemawat"]


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


def test_et_al_is_recorded_as_more_authors(parser):
    parsed = parser.parse(
        "Molander P, Farkkila M, Salminen K, et al. Outcome after discontinuation of therapy in "
        "patients with bowel disease. Inflamm Bowel Dis. 2014;20(6):1021-8."
    )
    assert parsed.more_authors
    assert parsed.authors[0] == Person("Molander", "P")


def test_as_json_has_only_filled_fields(parser):
    fields = parser.parse("Kuhn, T. S. (1962). The structure of scientific revolutions.").as_json()
    assert "doi" not in fields
    assert fields["year"] == 1962


@pytest.mark.parametrize(
    "text", ["Logics of {a, b}", "The sea (in winter)", "Waves [a report]", "A plain title"]
)
def test_a_field_keeps_the_bracket_that_it_opens(text):
    assert _trim(f" “{text}.") == text.removesuffix(".")
    assert _trim(f"{text}). ") == text


HARD_REFERENCES: dict[str, tuple[str, dict[str, Any]]] = {
    "an institution, a volume and a number in words, a year in the title": (
        (
            "Social Security Administration. Social Security Programs Throughout the World: Asia "
            "and the Pacific, 2008. Vol. 13. No. 11801. Government Printing Office, 2002."
        ),
        {
            "authors": ["Social Security Administration"],
            "title": "Social Security Programs Throughout the World: Asia and the Pacific, 2008",
            "volume": "13",
            "issue": "11801",
            "publisher": "Government Printing Office",
            "year": 2002,
        },
    ),
    "a collaboration and a double volume": (
        "X. Luo [STAR Collaboration], Nucl. Phys. A904-905, 911c (2013).",
        {
            "authors": ["Luo, X."],
            "title": "",
            "container": "Nucl. Phys.",
            "volume": "A904-905",
            "pages": "911c",
            "year": 2013,
        },
    ),
    "no signs at all": (
        "Iskra Ł W et al 2017 Acta Phys. Pol. B 48 581",
        {
            "authors": ["Iskra, Ł W"],
            "container": "Acta Phys. Pol. B",
            "volume": "48",
            "pages": "581",
            "year": 2017,
        },
    ),
    "initials without spaces, a year in the future": (
        (
            "G.R.R.Martin, J.R.R.Tolkien and D.Adams. The Lord of the Disc World. Unseen "
            "University Press, Sub-middle Earth, 2046."
        ),
        {
            "authors": ["Martin, G.R.R.", "Tolkien, J.R.R.", "Adams, D."],
            "title": "The Lord of the Disc World",
            "container": "",
            "publisher": "Unseen University Press",
            "year": 2046,
        },
    ),
    "a periodical, its volume and an article's number": (
        "Phys. Rev. Lett. 118, 077201",
        {"container": "Phys. Rev. Lett.", "volume": "118", "pages": "077201"},
    ),
    "a periodical known by its initials": (
        "Paczynski, B. 2000, MNRAS, 316, 326",
        {"container": "MNRAS", "volume": "316", "pages": "326", "year": 2000},
    ),
    "initials after the family name, and a question": (
        (
            "Fraser R.M., Keeling J. and Dunmore D. (2008). Why are particles in Europe not "
            "falling? Atmospheric Science, 42: 603-606."
        ),
        {
            "authors": ["Fraser, R.M.", "Keeling, J.", "Dunmore, D."],
            "title": "Why are particles in Europe not falling?",
            "container": "Atmospheric Science",
            "volume": "42",
        },
    ),
    "a short question": (
        "Jones, A. (2001). Who governs? Journal of Politics, 63(2), 100-120.",
        {"title": "Who governs?", "container": "Journal of Politics", "pages": "100–120"},
    ),
    "a given name with an initial, after one with initials alone": (
        "Smith, J. and Robert A. Doe. 2004. Effects of rain on rivers. Water Research 12:3-9.",
        {"authors": ["Smith, J.", "Doe, Robert A."], "container": "Water Research"},
    ),
    "a quotation inside a quotation": (
        "Bovert, M.-É., “The ‘Council’ of Salem,” ETL 64 (1988), pp. 433-40.",
        {"title": "The ‘Council’ of Salem", "container": "ETL", "volume": "64"},
    ),
    "words quoted inside a title": (
        (
            "Tarvo, Felix. Mother and Bride: An Investigation into the “Ecclesial” Notions of the "
            "Sea. Leuven: Peeters Press, 2007."
        ),
        {
            "title": "Mother and Bride: An Investigation into the “Ecclesial” Notions of the Sea",
            "container": "",
            "place": "Leuven",
        },
    ),
    "two works in one entry": (
        "A. Ernst, Ann. Phys. 17, 891 (1905); M. Plank, Phys. Rev. 4, 553 (1901).",
        {
            "authors": ["Ernst, A."],
            "container": "Ann. Phys.",
            "volume": "17",
            "pages": "891",
            "year": 1905,
        },
    ),
    "a book's title with a little 'in'": (
        "Brown, Lee E. (2000). Isokinetics in human performance. Champaign, IL: Human Kinetics.",
        {"title": "Isokinetics in human performance", "container": "", "place": "Champaign, IL"},
    ),
    "a publisher's markup": (
        (
            "Coleman, G.A. & Sanger, P.C., 1995. Bromide in natural waters. "
            "<italic>Environmental Science & Technology</italic>, 30:1:16."
        ),
        {
            "title": "Bromide in natural waters",
            "container": "Environmental Science & Technology",
            "volume": "30",
        },
    ),
}
"""References of kinds that are hard to cut, each with the fields that must be right."""


@pytest.mark.parametrize("kind", HARD_REFERENCES)
def test_a_reference_of_a_hard_kind_is_cut_right(parser, kind):
    text, expected = HARD_REFERENCES[kind]
    parsed = parser.parse(text)
    fields = {name: getattr(parsed, name) for name in expected}
    if "authors" in expected:
        fields["authors"] = [str(person) for person in parsed.authors]
    title = expected.get("title", "")
    if title.endswith("?"):  # whether a question keeps its mark is the style's matter
        fields["title"] = fields["title"].rstrip("?") + "?"
    assert fields == expected


@pytest.mark.parametrize(
    ("text", "quotations"),
    [
        ("A. B, “C ‘d’ E,” F 3", ["“ C ‘ d ’ E , ”"]),
        ("A. B, ‘C of the ‘D’: E’, F 3", ["‘ C of the ‘ D ’ : E ’"]),
        ("A, Into the “D” Notions of E. F, 3", []),
        ("A, ``B of C,'' D 3", ["`` B of C , ''"]),
        ("A, « B », C; A, «D», E", ["« B »", "« D »"]),
        ("A, “B of C. D, 3", []),
    ],
)
def test_a_standalone_quotation_is_distinguished_from_quoted_words(text, quotations):
    tokens = tokens_of(text)
    quoted_texts = [
        " ".join(token.text for token in tokens[first : last + 1])
        for first, last in _quotations(tokens)
    ]
    assert quoted_texts == quotations


@pytest.mark.parametrize("text", ["", " \n", "\x00", "."])
def test_a_text_without_words_is_a_reference_without_fields(parser, text):
    parsed = parser.parse(text)
    assert (parsed.title, parsed.authors, parsed.year) == ("", (), None)


@given(st.text(max_size=400))
def test_any_text_is_cut_without_an_error(text):
    parsed = OfflineParser().parse(text)
    assert isinstance(parsed, Reference)
    assert 0 <= parsed.confidence <= 1


@pytest.mark.parametrize(
    "piece",
    [
        "10.1000/",
        "http://",
        "((((",
        "‘",
        "“”‘",
        "\u201c",
        "A. ",
        "- \n",
        "1-",
        "ISBN 978-",
        "et al. ",
    ],
)
def test_an_endless_text_is_cut_to_the_longest_reference(parser, piece):
    text = piece * (2_000_000 // len(piece))
    assert len(clean_reference(text)) <= MAX_REFERENCE_CHARS
    assert len(tokens_of(clean_reference(text))) <= MAX_REFERENCE_CHARS
    parser.parse(text)
